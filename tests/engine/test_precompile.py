"""Compiling ahead: the work is every launch of every bucket, and a failing step is told by name."""

from pathlib import Path

import pytest
import torch

from strata.engine.graphs import wanted_graphs
from strata.engine.precompile import CompileRequest, processes_that_fit, skeleton_of, step_groups
from strata.engine.stage import Stage, StageSizes, Variant
from tests.gpu.tiny_models import directory

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stage() -> Stage:
    request = CompileRequest(directory("qwen4_exp"), "code8", 2, 0, 0, Path("unused"))
    return Stage(skeleton_of(request, CPU), StageSizes(2, 512))


def test_the_groups_are_all_launches_of_windows_and_reads(stage: Stage) -> None:
    launches = [launch for group in step_groups(stage) for launch in group]
    wanted = [
        launch
        for variant, bucket in wanted_graphs(stage.buckets)
        if variant in (Variant.WINDOW, Variant.READ)
        for launch in stage.launches(variant, bucket)
    ]
    assert len(launches) == len(wanted)
    assert {id(launch) for launch in launches} == {id(launch) for launch in wanted}
    assert all(len({(launch.kind, launch.step) for launch in group}) == 1 for group in step_groups(stage))


def test_every_step_of_a_skeleton_runs_over_no_rows(stage: Stage) -> None:
    before = [tensor.clone() for tensor in stage.state.tensors]
    for group in step_groups(stage):
        for launch in group:
            launch.run()
    assert all(torch.equal(found, kept) for found, kept in zip(stage.state.tensors, before, strict=True))


def test_processes_follow_from_cores_and_room() -> None:
    assert processes_that_fit(16, 100 << 30) == 15
    assert processes_that_fit(16, 8 << 30) == 4
    assert processes_that_fit(1, 8 << 30) == 1
    assert processes_that_fit(8, 0) == 1
