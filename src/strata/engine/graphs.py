"""A stage's windows as captured graphs: one call for hundreds of launches. Elsewhere than on a GPU, op by op.

Knows when something may be captured: after every kernel has run once, so that no capture compiles or loads a module.
Knows no op and no request.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from strata.engine.flights import in_flight
from strata.engine.local_stage import on_device
from strata.engine.stage import Stage, Variant
from strata.errors import EngineError
from strata.kernels.roads import is_reference_on
from strata.models.device.launches import Program
from strata.types import ProgressCallback

_STAGE_NAME = "preparing windows"


def wanted_graphs(stage: Stage) -> tuple[tuple[Variant, int], ...]:
    """All that is run of a stage's buckets: every variant of each, but prompts are read in the largest alone."""
    usual = [variant for variant in stage.variants if variant is not Variant.READ]
    return (*((variant, bucket) for bucket in stage.buckets for variant in usual), (Variant.READ, stage.buckets[-1]))


class WindowGraphs:
    """Runs a stage's variants; made when the model is loaded, or while nothing runs."""

    def __init__(self, stage: Stage, on_progress: ProgressCallback | None = None) -> None:
        """Runs everything once and captures it. Raises EngineError if a launch cannot be captured.

        An interrupt (Ctrl-C) ends the capture and is raised again; the stage is then still as it was.
        """
        self.stage = stage
        self._graphs: Mapping[tuple[Variant, int], torch.cuda.CUDAGraph] = {}
        if stage.device.type == "cuda" and not is_reference_on(stage.device):
            self._graphs = _capture_all(stage, on_progress)

    def run(self, variant: Variant, bucket: int) -> None:
        """Put one variant of a bucket behind what was launched before; returns at once."""
        graph = self._graphs.get((variant, bucket))
        if graph is None:
            self.stage.run(variant, bucket)
        else:
            graph.replay()


def warm_up(stage: Stage, on_progress: ProgressCallback | None = None, steps_behind: int = 0) -> None:
    """Run everything once, so that its kernels are compiled and loaded, over rows that name no slot: no state changes.

    steps_behind: what the caller has to do after this, for a progress that tells of both.
    """
    with on_device(stage.device):
        _forget_rows(stage)
        wanted = wanted_graphs(stage)
        total = len(wanted) + steps_behind
        for done, (variant, bucket) in enumerate(wanted):
            _report(on_progress, done, total)
            with in_flight(stage):
                stage.run(variant, bucket)
                stage.wait()  # an error belongs to this bucket
        if stage.state.pools is not None:
            stage.state.copy(0, 0, 1)  # as slots are copied later; onto itself
            stage.wait()
        _report(on_progress, len(wanted), total)


def _forget_rows(stage: Stage) -> None:
    """Rows and plans that name no slot."""
    stage.set_plan(0, ())
    stage.set_accepted(())
    for bucket in stage.buckets:
        stage.set_rows(bucket, ())


def _capture_all(stage: Stage, on_progress: ProgressCallback | None) -> dict[tuple[Variant, int], torch.cuda.CUDAGraph]:
    from strata.kernels.compiled import noting_compilations

    wanted = wanted_graphs(stage)
    total = 2 * len(wanted)
    warm_up(stage, on_progress, steps_behind=len(wanted))  # a later capture finds every module loaded
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(stage.device)
    graphs = {}
    with noting_compilations() as noted, torch.cuda.stream(stream):
        for done, (variant, bucket) in enumerate(wanted):
            _report(on_progress, len(wanted) + done, total)
            program = stage.launches(variant, bucket)
            if program:  # attention alone has nothing to commit
                graphs[variant, bucket] = _captured(program, pool)
    if noted.count:
        late = ", ".join(sorted({*noted.compiled, *noted.fetched}))
        raise EngineError(f"kernels were compiled or loaded while windows were captured: {late}")
    stage.wait()
    _report(on_progress, total, total)
    return graphs


def replay_of(program: Program, device: torch.device) -> Callable[[], None]:
    """What launches all of a program in one call, as a graph where there is one. All of it has run before."""
    if device.type != "cuda" or is_reference_on(device):
        return partial(_run_all, program)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        graph = _captured(program, torch.cuda.graph_pool_handle())
    return graph.replay


def _run_all(program: Program) -> None:
    for launch in program:
        launch.run()


def _captured(program: Program, pool: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, pool):
        _run_all(program)
    return graph


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """A capture that is ended whatever happens inside: a stream left in capture would hang whoever waits for it."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # a broken capture cannot be ended properly; the first error counts
            graph.capture_end()
        raise
    graph.capture_end()


def _report(on_progress: ProgressCallback | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(_STAGE_NAME, done, total)
