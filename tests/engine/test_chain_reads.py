"""Prompts whose chunks pass several stages one behind the other: the bits of one stage, whatever comes in between."""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch

from strata.engine.chunk_loading import make_chunks
from strata.engine.chunk_reading import chunk_runs
from strata.engine.read_pace import ReadSteps
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.models.base import LogitRows, Reading, Segment
from strata.models.device.reading.rows import Run
from strata.native import library
from strata.state.checkpoints import go_back
from tests.engine.chained_stages import chain_of, parts_of
from tests.engine.chunked_stages import chunked_model
from tests.engine.stages import described
from tests.engine.test_chain_tiers import CHOICE, FAMILY, SIZES, tiered_chain
from tests.engine.test_chunk_reading import decode
from tests.engine.tiered_stages import built as built_in_tiers
from tests.random_text import text_of

LONG, SHORT, MORE = text_of(140), text_of(70, 3), text_of(1, 9)
ALL_CUTS = [("qwen4_exp", (2,)), ("qwen4_exp", (1, 3)), ("qwen3_5_moe", (3,)), ("llama", (1,))]
CAPACITY = 64


def reading_chain(name: str, cuts: tuple[int, ...], slots: int = 3, steps: ReadSteps | None = None) -> StageModel:
    """A chain of stages on the CPU, each with memory for chunks of CAPACITY rows."""
    built = described(name)[0]
    chain = chain_of(parts_of(name, cuts), StageSizes(slots, 256), (1, 32))
    first, *others = (make_chunks(stage, CAPACITY) for stage in chain.stages)
    return StageModel(chain, chain.run, built.config, built.experts_per_row, first, steps, other_chunks=others)


def begin(model: StageModel, text: torch.Tensor, marks: Sequence[int] = ()) -> tuple[StageSlot, Any]:
    state = model.new_state()
    return state, model.begin_read(Segment(state, text), LogitRows.LAST, marks)


def finish(model: StageModel, state: StageSlot, reading: Reading) -> torch.Tensor:
    """The last row's logits and those of the next rows; the slot is free for others."""
    while not reading.advance():
        pass
    found = [reading.finish().logits, decode(model, state, MORE)]
    model.release(state)
    return torch.cat(found)


def alone(model: StageModel, text: torch.Tensor) -> torch.Tensor:
    return finish(model, *begin(model, text))


@cache
def on_one_stage(name: str, rows: int, seed: int = 0) -> torch.Tensor:
    return alone(chunked_model(name, slots=1, context=256, capacity=256), text_of(rows, seed))


def holders(model: StageModel) -> list[bool]:
    """Which stages' memory some chunk has."""
    return [memory._holder is not None for memory in model._memories]


@pytest.mark.parametrize(("position", "count", "runs"), [
    (0, 200, [(0, 64), (64, 128), (128, 192), (192, 200)]),
    (50, 100, [(0, 14), (14, 78), (78, 100)]),
    (128, 64, [(0, 64)]),
    (3, 1, [(0, 1)]),
])  # fmt: skip
def test_a_run_is_cut_on_the_grid_of_positions(position: int, count: int, runs: list[tuple[int, int]]) -> None:
    assert chunk_runs(position, count, CAPACITY) == [Run(*each) for each in runs]


@pytest.mark.parametrize(("name", "cuts"), ALL_CUTS)
def test_a_run_over_stages_has_the_bits_of_one_chunk_on_one_stage(name: str, cuts: tuple[int, ...]) -> None:
    """With windows of a reply between any two steps, and cut in two at every chunk's end."""
    wanted, model = on_one_stage(name, len(LONG)), reading_chain(name, cuts)
    stream = model.new_state()
    state, reading = begin(model, LONG)
    steps = 0
    while not reading.advance():
        steps += 1
        if steps % 5 == 0:
            decode(model, stream, text_of(1))
    assert torch.equal(finish(model, state, reading), wanted)
    state = model.new_state()
    model.read([Segment(state, LONG[:128])])
    assert torch.equal(finish(model, state, model.begin_read(Segment(state, LONG[128:]))), wanted)


def test_places_and_rows_are_known_as_chunks_leave_the_last_stage() -> None:
    model, whole = reading_chain("qwen4_exp", (2,)), on_one_stage("qwen4_exp", len(LONG))
    state, reading = begin(model, LONG, marks=[64, 128])
    seen = [(0, 0)]
    while not reading.advance():
        now = state.position, len(reading.checkpoints)
        if now != seen[-1]:
            seen.append(now)
    assert seen == [(0, 0), (64, 1), (128, 2)]
    assert torch.equal(finish(model, state, reading), whole)
    for saved in reading.checkpoints:
        other = model.new_state()
        go_back(other, saved)
        with pytest.raises(AssertionError):
            assert torch.equal(decode(model, other, MORE), whole[1:])
        model.release(other)


@pytest.mark.parametrize(("name", "cuts", "by_tiles"), [("qwen4_exp", (1, 3), False), ("qwen3_moe", (1,), True)])
def test_a_run_gives_way_with_chunks_on_all_stages(name: str, cuts: tuple[int, ...], by_tiles: bool) -> None:
    """At any step of it another prompt passes all stages, or some; then it goes on."""
    model = reading_chain(name, cuts, steps=ReadSteps(by_tiles=by_tiles))
    wanted, short = on_one_stage(name, len(LONG)), on_one_stage(name, len(SHORT), 3)
    for first in range(1, 40, 5):
        state, reading = begin(model, LONG, marks=[64, 128])
        if any(reading.advance() for _ in range(first)):
            break
        other, beside = begin(model, SHORT)
        for _ in range(2):
            beside.advance()
            reading.advance()  # they take turns on the first stages
        assert torch.equal(finish(model, other, beside), short)
        assert torch.equal(finish(model, state, reading), wanted)
    assert first > 4


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_steps_windows_and_cancels_gives_each_read_its_bits(seed: int) -> None:
    """Three prompts over two stages, a step of any of them at a time; some are given up and read again."""
    order = random.Random(seed)
    model = reading_chain("qwen3_moe", (1,), slots=4, steps=ReadSteps(by_tiles=seed % 2 == 1))
    sizes, stream = (140, 70, 129), model.new_state()
    model.read([Segment(stream, text_of(20))])
    under_way: dict[int, tuple[StageSlot, Any]] = {}
    left = list(range(len(sizes)))
    while left:
        number = order.choice(left)
        if number not in under_way:
            under_way[number] = begin(model, text_of(sizes[number], number))
        state, reading = under_way[number]
        if order.random() < 0.04:
            reading.cancel()
            model.release(state)
            del under_way[number]
        elif order.random() < 0.1:
            decode(model, stream, text_of(1))
        elif reading.advance():
            found = finish(model, state, reading)
            assert torch.equal(found, on_one_stage("qwen3_moe", sizes[number], number))
            left.remove(number)
    assert holders(model) == [False, False]


@pytest.mark.parametrize("steps", [2, 5, 8])
def test_a_run_that_is_given_up_goes_back_to_the_last_place_and_is_read_again(steps: int) -> None:
    model, wanted = reading_chain("qwen4_exp", (2,), slots=2), on_one_stage("qwen4_exp", len(LONG))
    state, reading = begin(model, LONG, marks=[64, 128])
    _, beside = begin(model, SHORT)
    for _ in range(steps):
        reading.advance()
        if steps % 4 == 1:
            beside.advance()  # so that some of its chunks are set aside
    reading.cancel()
    beside.cancel()
    assert holders(model) == [False, False] and state.position % CAPACITY == 0
    if reading.checkpoints:
        saved = reading.checkpoints[-1]
        go_back(state, saved)
        assert saved.position == state.position
    else:
        model.release(state)
        state = model.new_state()
    rest = LONG[state.position :]
    assert torch.equal(finish(model, state, model.begin_read(Segment(state, rest))), wanted)


class _BrokenOff(Exception):
    """Stands for an error of the engine's."""


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("chunk", [0, 2])
def test_an_error_on_any_stage_ends_the_read_and_leaves_the_memory(
    stage: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wanted = reading_chain("qwen4_exp", (2,)), on_one_stage("qwen4_exp", len(LONG))
    memory, begun = model._memories[stage], []
    inner = memory.begin

    def break_off(*args: Any) -> Any:
        begun.append(inner(*args))
        if len(begun) == chunk + 1:
            monkeypatch.setattr(begun[-1], "launch", _fail)
        return begun[-1]

    monkeypatch.setattr(memory, "begin", break_off)
    state, reading = begin(model, LONG)
    with pytest.raises(_BrokenOff):
        while not reading.advance():
            pass
    reading.cancel()
    model.release(state)
    assert holders(model) == [False, False]
    assert torch.equal(alone(model, LONG), wanted)


def _fail(*_: object) -> None:
    raise _BrokenOff


def test_the_next_chunk_is_read_in_front_while_this_one_passes_the_last_stage() -> None:
    """Steps of two equal stages: half of what one stage takes, and a chunk's layers on the way."""
    model, layers = reading_chain("qwen4_exp", (2,)), 4
    _, reading = begin(model, LONG)
    steps, at_once = 1, 0
    while not reading.advance():
        steps, at_once = steps + 1, max(at_once, sum(holders(model)))
    assert at_once == 2
    chunks = len(chunk_runs(0, len(LONG), CAPACITY))
    assert steps <= chunks * (layers // 2 + 1) + layers // 2 + 2
    ahead = reading.ahead
    assert (ahead.queued, ahead.spare) == (0.0, 0.0)
    reading.cancel()


def test_logits_of_all_rows_are_of_one_chunk() -> None:
    model = reading_chain("llama", (1,))
    state = model.new_state()
    with pytest.raises(ValueError, match="logits of all of 65 rows: a chunk has 1 to 64"):
        model.begin_read(Segment(state, text_of(65)), LogitRows.ALL)
    found = model.read([Segment(state, LONG)], LogitRows.ALL).logits
    wanted = chunked_model("llama", capacity=256)
    assert torch.equal(found, wanted.read([Segment(wanted.new_state(), LONG)], LogitRows.ALL).logits)


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
@pytest.mark.parametrize("steps", [0, 2, 5, 6])
def test_every_stage_sends_its_experts_and_counts_what_the_last_rows_took(steps: int) -> None:
    """Also of chunks that were set aside, at the end of their stage too; seats may change meanwhile."""
    built, described_whole = built_in_tiers(FAMILY, CHOICE)
    text, whole = text_of(128), Stage(described_whole, SIZES)
    alone_there = StageModel(whole, whole.run, built.config, 0, make_chunks(whole, 128))
    wanted = alone_there.read([Segment(alone_there.new_state(), text)]).logits
    with tiered_chain() as (chain, tiers):
        told: list[list[Any]] = [[] for _ in tiers]
        for each, heard in zip(tiers, told, strict=True):
            each.follow(lambda _: None, heard.append)
        first, *others = (
            make_chunks(stage, CAPACITY, each._places)  # type: ignore[arg-type]
            for stage, each in zip(chain.stage.stages, tiers, strict=True)
        )
        model = StageModel(chain.stage, chain.run, chain.config, 0, first, other_chunks=others)
        _, reading = begin(model, text)
        for _ in range(steps):
            reading.advance()
        other, beside = begin(model, text[:20])
        while not beside.advance():
            assert sum(each.seats_are_held for each in tiers) <= sum(holders(model))
        beside.finish()
        model.release(other)
        while not reading.advance():
            pass
        assert torch.equal(reading.finish().logits, wanted)
        assert not any(each.seats_are_held for each in tiers)
        ranks = built.layers[0].routed_experts
        for stage, heard in zip(chain.stage.stages, told, strict=True):
            (asked,) = heard
            assert asked.sum(axis=1).tolist() == [64 * ranks] * len(stage.model.layers)
