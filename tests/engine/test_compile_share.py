"""What a compiling process does: the work is every launch of every bucket once, and it answers whatever happens."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.engine.compile_share import (
    CompileRequest,
    Share,
    chunk_groups,
    job_as_line,
    job_of_line,
    share_of_line,
    skeleton_of,
    stage_of,
    step_groups,
)
from strata.engine.graphs import wanted_graphs
from strata.engine.precompile import COMMAND
from strata.engine.stage import Stage, StageSizes
from strata.native import library
from strata.quant.cell_codes import CellKind
from tests.gpu.tiny_models import directory

CPU = torch.device("cpu")


IN_TIERS = {"experts: plan", "experts: collect"}
STEPS = {"on the device": set(), "in tiers": IN_TIERS, "in tiers, the stream waits": IN_TIERS | {"experts: wait"}}


@pytest.fixture(scope="module", params=STEPS)
def stage(request: pytest.FixtureRequest) -> Stage:
    """Of a model whose experts all lie on the device, and of those whose experts lie in tiers."""
    wanted: set[str] = STEPS[request.param]
    has_tiers, waits_in_stream = bool(wanted), "experts: wait" in wanted
    if has_tiers and not library.is_available():
        pytest.skip("the native library was not built")
    tiered: dict[str, Any] = {"has_tiers": has_tiers, "waits_in_stream": waits_in_stream}
    asked = CompileRequest(directory("qwen4_exp"), "code8", 2, 0, 0, Path("unused"), **tiered)
    made = Stage(skeleton_of(asked, CPU), StageSizes(2, 512))
    steps = {launch.step for group in step_groups(made) for launch in group}
    assert steps & (IN_TIERS | {"experts: wait"}) == wanted
    return made


def test_the_groups_are_all_launches_of_all_that_is_run_once(stage: Stage) -> None:
    launches = [launch for group in step_groups(stage) for launch in group]
    wanted = {id(launch) for variant, bucket in wanted_graphs(stage) for launch in stage.launches(variant, bucket)}
    assert len(launches) == len(wanted)
    assert {id(launch) for launch in launches} == wanted
    assert all(len({(launch.kind, launch.step) for launch in group}) == 1 for group in step_groups(stage))


def test_every_step_of_a_skeleton_runs_over_no_rows(stage: Stage) -> None:
    before = [tensor.clone() for tensor in stage.state.tensors]
    for group in step_groups(stage):
        for launch in group:
            launch.run()
    assert all(torch.equal(found, kept) for found, kept in zip(stage.state.tensors, before, strict=True))


def test_every_step_of_a_chunk_runs_on_a_skeleton_without_an_expert_s_bytes(stage: Stage) -> None:
    groups = list(chunk_groups(stage))
    steps = {group[0].step for group in groups}
    assert {"delta: rule", "attention: attend", "experts: gate, up", "experts: down", "head"} <= steps
    assert "experts: group" not in steps
    assert all(len({(launch.kind, launch.step) for launch in group}) == 1 for group in groups)
    for group in groups:
        for launch in group:
            launch.run()


def test_a_job_is_a_line() -> None:
    request = CompileRequest(Path("a model"), "code4", 3, 1, 2, Path("a folder"), dependent_launches=False)
    line = job_as_line(request, 5, 8)
    assert line.count(b"\n") == 1
    assert job_of_line(line.decode()) == (request, 5, 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_the_process_answers_every_job_with_what_went_wrong(tmp_path: Path) -> None:
    job = job_as_line(CompileRequest(directory("llama"), "none", 1, 0, 0, tmp_path), 0, 1)
    assert COMMAND[0] == sys.executable
    found = subprocess.run(COMMAND, input=2 * job, capture_output=True, check=True, timeout=120)
    first, second = map(share_of_line, found.stdout.splitlines())
    assert first == second == Share(0, first.failures)
    assert len(first.failures) == 1


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.Q4])
def test_kernels_are_those_of_the_kind_of_keys_and_values(kind: CellKind) -> None:
    asked = CompileRequest(directory("llama"), "none", 1, 0, 0, Path("unused"), kv_kind=kind.value)
    made = stage_of(asked, CPU)
    assert made.state.kind is kind
    assert made.state.keys.codes.dtype == kind.keys.dtype
