"""Requests that get in each other's way: each gets the tokens that it gets alone, in every read mode, on every road."""

from dataclasses import replace

import pytest

from strata.bench.interleave import Check, Interleave, InterleavePlan, interleave_modes
from strata.bench.join_modes import Served
from strata.engine.chunk_loading import make_chunks
from strata.engine.device_windows import DeviceWindows
from strata.engine.engine import TokenEngine
from strata.engine.stage import StageSizes
from strata.engine.stage_model import GroupStage, StageModel
from strata.engine.windows_ahead import WindowsAhead
from strata.models.base import LanguageModel
from strata.settings import EngineSettings
from tests.engine.chained_stages import chain_of, parts_of
from tests.engine.chunked_stages import chunked_model
from tests.engine.stages import described
from tests.same_answer.conftest import FAMILIES

CHUNK, SLOTS, GROUPS = 64, 4, 2
PLAN = replace(InterleavePlan().with_piece(2 * CHUNK), stream_tokens=40, stopped_tokens=20)
FEW = InterleavePlan.few().with_piece(2 * CHUNK)  # windows are slow over the torch road
SETTINGS = EngineSettings(threads=1, slots=SLOTS, max_gap_ms=1.0, chunk_rows=CHUNK)
MODES = {mode.name: mode for mode in interleave_modes(PLAN.piece)}


def interleave_of(engine: TokenEngine, plan: InterleavePlan = PLAN, groups: int = 1) -> Interleave:
    """The test over any engine with so many slots."""
    return Interleave(engine, Served(SLOTS, CHUNK, groups), SETTINGS, plan)


def wrong(checks: list[Check]) -> list[Check]:
    return [check for check in checks if not check.is_good]


def chained(name: str, cuts: tuple[int, ...]) -> TokenEngine:
    """Two groups over stages that read runs of chunks; every group's tokens are chosen there, one window ahead."""
    built, parts, sizes = described(name)[0], parts_of(name, cuts), StageSizes(SLOTS, FEW.context + 1)
    first = chain_of(parts, sizes)
    beside = [chain_of(parts, sizes, beside=first, group=group) for group in range(1, GROUPS)]
    chunks = [make_chunks(stage, CHUNK) for stage in first.stages]
    groups = [GroupStage(chain, chain.run) for chain in beside]
    model = StageModel(
        first, first.run, built.config, built.experts_per_row, chunks[0], other_groups=groups, other_chunks=chunks[1:]
    )
    return TokenEngine(model, SETTINGS, ahead=[WindowsAhead(DeviceWindows(model, group)) for group in range(GROUPS)])


@pytest.mark.parametrize("family", FAMILIES)
def test_on_the_cpu_everybody_gets_what_they_get_alone(models: dict[str, LanguageModel], family: str) -> None:
    test = interleave_of(TokenEngine(models[family], SETTINGS))
    for mode in MODES.values():
        assert wrong(test.run(mode)) == [], mode.name


def test_on_a_stage_everybody_gets_what_they_get_alone() -> None:
    model = chunked_model("llama", SLOTS, FEW.context + 1, CHUNK)
    test = interleave_of(TokenEngine(model, SETTINGS), FEW)
    for mode in MODES.values():
        assert wrong(test.run(mode)) == [], mode.name


def test_in_groups_over_two_stages_everybody_gets_what_they_get_alone() -> None:
    """`python -m strata bench interleave --devices cpu,cpu` runs the same over any model; minutes, on the CPU."""
    engine = chained("llama", (1,))
    assert engine.reads_runs
    test = interleave_of(engine, FEW, GROUPS)
    for mode in MODES.values():
        assert wrong(test.run(mode)) == [], mode.name
