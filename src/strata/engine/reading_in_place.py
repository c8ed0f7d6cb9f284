"""Experts in main memory computed by a window's own launches outside of any window: how a card reads them in place.

Knows a stage's steps and the plan that they read; knows no clock. Everything that is launched has run before: nothing
is compiled here.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from strata.engine.graphs import replay_of
from strata.engine.stage import Stage, Variant
from strata.experts.share_measuring import ListedExperts
from strata.kernels.expert_plan.tables import PlannedWork
from strata.models.device.description import SparseMlp
from strata.models.device.launches import Launch, Program

ROWS_STEP = "experts: rows"


def reading_in_place(stage: Stage, lists: Sequence[ListedExperts]) -> Callable[[], None]:
    """Launches, for one list after another, what a window of one row launches for a layer whose plan it is.

    lists: of as many experts each, no more than a row asks for, in memory that the device reads. Nothing is in flight,
    and what windows leave in their buffers is lost; the next one writes all of it anew.
    """
    program = program_of(stage, lists)
    for launch in program:  # what has run is loaded, and may be captured
        launch.run()
    stage.wait()
    return replay_of(program, stage.device)


def program_of(stage: Stage, lists: Sequence[ListedExperts]) -> Program:
    """See `reading_in_place`: each list's addresses, and its layer's experts over them."""
    bucket = stage.buckets[0]
    steps = {each.layer: each for each in stage.launches(Variant.FORWARD, bucket) if each.step == ROWS_STEP}
    layers = [(n, layer.mlp) for n, layer in enumerate(stage.model.layers) if isinstance(layer.mlp, SparseMlp)]
    listed = [[blob.data_ptr() for blob in each.blobs] for each in lists]
    addresses = torch.tensor(listed, dtype=torch.int64, device=stage.device)
    program: list[Launch] = []
    for each, row in zip(lists, addresses, strict=True):
        number, mlp = layers[each.layer]
        planned = stage.planned(bucket, mlp)
        _plan_first(planned, len(each.blobs))
        write = partial(_write, row, planned.addresses[: len(each.blobs)])
        program += [Launch(number, "window", "addresses", write), steps[number]]
    return program


def _write(addresses: torch.Tensor, target: torch.Tensor) -> None:
    """By a kernel and no copy, which no kernel of a graph can follow that starts early."""
    torch.add(addresses, 0, out=target)


def _plan_first(planned: PlannedWork, count: int) -> None:
    """Row 0 takes `count` experts, one a rank, all of them the device's."""
    work = planned.work
    numbers = torch.arange(work.starts.numel(), dtype=torch.int32)
    work.starts.copy_(numbers.clamp(max=count))
    work.places.copy_(numbers[:-1])
    work.rows.zero_()
