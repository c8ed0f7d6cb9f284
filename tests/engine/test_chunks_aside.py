"""Reads that give way in the middle of a chunk: whatever passes in between, each gives the bits it gives alone."""

from collections.abc import Sequence

import pytest
import torch

from strata.engine.read_pace import ReadSteps
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.models.base import LogitRows, Reading, Segment
from strata.native import library
from strata.state.checkpoints import go_back
from tests.engine.cancelled_chunks import host_bytes
from tests.engine.chunked_stages import CHUNKED, chunked_in_tiers, chunked_model
from tests.engine.test_chunk_reading import decode, kept, read
from tests.engine.tiered_stages import Tiering
from tests.random_text import text_of

needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
LONG, SHORT = text_of(80), text_of(20, 3)
Read = tuple[torch.Tensor, list[torch.Tensor]]  # logits, and all that the rows left behind


def begin(model: StageModel, text: torch.Tensor = LONG, marks: Sequence[int] = ()) -> tuple[StageSlot, Reading]:
    state = model.new_state()
    return state, model.begin_read(Segment(state, text), LogitRows.LAST, marks)


def advance(reading: Reading, steps: int) -> None:
    for _ in range(steps):
        assert not reading.advance()


def finish(model: StageModel, state: StageSlot, reading: Reading) -> Read:
    """The rest of its steps; the slot is free for others."""
    while not reading.advance():
        pass
    logits = reading.finish().logits
    found = logits, kept(model, state)
    model.release(state)
    return found


def alone(model: StageModel, text: torch.Tensor) -> Read:
    return finish(model, *begin(model, text))


def assert_same(found: Read, wanted: Read) -> None:
    assert torch.equal(found[0], wanted[0])
    for mine, theirs in zip(found[1], wanted[1], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("family", "by_tiles"), [*((family, False) for family in CHUNKED), ("qwen4_exp", True)])
def test_a_read_gives_way_behind_any_step_twice_and_keeps_its_bits(family: str, by_tiles: bool) -> None:
    """Another whole prompt and windows of a reply pass in between; the step before may end inside a layer."""
    model = chunked_model(family, slots=4, steps=ReadSteps(by_tiles=by_tiles))
    wanted, short = alone(model, LONG), alone(model, SHORT)
    steps, start = steps_of(model), read(model, model.new_state(), SHORT[:3])
    at_mark, stream = alone(model, LONG[:64])[1], model.new_state()
    for first in range(1, steps + 1, 4 if by_tiles else 1):
        state, reading = begin(model, marks=[64])
        advance(reading, first)
        other, beside = begin(model, SHORT)
        decode(model, stream, text_of(1, 8))
        assert_same(finish(model, other, beside), short)
        other = model.new_state()
        for _ in range(2):
            reading.advance()
        assert torch.equal(read(model, other, SHORT[:3]), start)
        assert_same(finish(model, state, reading), wanted)
        go_back(state, reading.checkpoints[0])
        assert all(map(torch.equal, kept(model, state), at_mark))
        model.release(other)


def steps_of(model: StageModel) -> int:
    """Steps of a read of LONG but the last one."""
    state, reading = begin(model)
    steps = 0
    while not reading.advance():
        steps += 1
    reading.cancel()
    model.release(state)
    return steps


def test_reads_that_take_turns_step_by_step_all_come_to_their_ends() -> None:
    model = chunked_model("qwen4_exp", slots=3, steps=ReadSteps(by_tiles=True))
    texts = LONG, SHORT, text_of(100, 4)
    wanted = [alone(model, text) for text in texts]
    under_way = dict(enumerate(begin(model, text) for text in texts))
    while under_way:
        for number, (state, reading) in list(under_way.items()):
            if reading.advance():
                assert torch.equal(reading.finish().logits, wanted[number][0])
                assert_same((wanted[number][0], kept(model, state)), wanted[number])
                del under_way[number]


@needs_library
@pytest.mark.parametrize("rows", [150, 3])  # everything is sent, or what is asked for
def test_seats_may_change_while_a_read_is_set_aside(rows: int) -> None:
    text = text_of(rows)
    with chunked_in_tiers("qwen3_5_moe", "code8", Tiering(0.5), slots=3) as (model, store):
        tiers, wanted, layers = (
            model.stage.stages[0].model.tiers,
            alone(model, text),
            len(model.stage.stages[0].model.layers),
        )
        assert tiers is not None
        for steps in range(1, layers):
            state, reading = begin(model, text)
            advance(reading, steps)
            other, beside = begin(model, SHORT)
            beside.advance()  # sets the first one aside
            assert not tiers.seats_are_held
            beside.cancel()
            model.release(other)
            before = store.resident.copy()
            for row in store.resident:
                row[row.nonzero()[0][:2]] = 0  # two residents of each layer have lost their seats
            sent = model.chunks.feed.sent if model.chunks is not None else 0
            assert_same(finish(model, state, reading), wanted)
            assert model.chunks is not None and model.chunks.feed.sent > sent
            store.resident[:] = before


def test_a_read_that_has_not_begun_its_first_layer_gives_way_without_a_copy() -> None:
    model = chunked_model("qwen4_exp")
    wanted, short = alone(model, LONG), alone(model, SHORT)
    state, reading = begin(model)
    assert_same(alone(model, SHORT), short)
    assert model.chunks is not None and model.chunks._holder is None
    assert_same(finish(model, state, reading), wanted)


def pair(model: StageModel, first: int, second: int) -> tuple[StageSlot, Reading, StageSlot, Reading]:
    """One read set aside behind some steps, another one that has the memory."""
    state, reading = begin(model)
    advance(reading, first)
    other, beside = begin(model, SHORT)
    advance(beside, second)
    return state, reading, other, beside


@pytest.mark.parametrize("which", ["set aside", "running", "both"])
@pytest.mark.parametrize(("first", "second"), [(1, 1), (3, 2)])
def test_who_is_given_up_leaves_slot_and_memory_to_others(which: str, first: int, second: int) -> None:
    model = chunked_model("qwen4_exp")
    wanted, short = alone(model, LONG), alone(model, SHORT)
    state, reading, other, beside = pair(model, first, second)
    if which != "running":
        reading.cancel()
        model.release(state)
    if which != "set aside":
        beside.cancel()
        model.release(other)
    if which == "set aside":
        assert_same(finish(model, other, beside), short)
    if which == "running":
        assert_same(finish(model, state, reading), wanted)
    assert_same(alone(model, LONG), wanted)
    assert model.chunks is not None and model.chunks._holder is None
    assert {model.new_state().index, model.new_state().index} == {0, 1}


class _BrokenOff(Exception):
    """Stands for an error of the engine's."""


@pytest.mark.parametrize("by_tiles", [False, True])
def test_an_error_of_who_gives_way_is_its_own(by_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is met by the other read's step, which goes on, and told when the first one is to go on."""
    model = chunked_model("qwen4_exp", steps=ReadSteps(by_tiles=by_tiles))
    wanted, short = alone(model, LONG), alone(model, SHORT)
    state, reading = begin(model)
    advance(reading, 2)
    assert model.chunks is not None and model.chunks._holder is not None
    holder = model.chunks._holder
    for name in ("launch", "set_aside"):
        monkeypatch.setattr(holder, name, _fail)
    other, beside = begin(model, SHORT)
    assert_same(finish(model, other, beside), short)
    with pytest.raises(_BrokenOff):
        reading.advance()
    reading.cancel()
    model.release(state)
    assert_same(alone(model, LONG), wanted)


def test_an_error_of_who_goes_on_leaves_the_one_set_aside_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chunked_model("qwen4_exp")
    wanted, short = alone(model, LONG), alone(model, SHORT)
    state, reading, other, beside = pair(model, 2, 2)
    assert model.chunks is not None and model.chunks._holder is not None
    monkeypatch.setattr(model.chunks._holder, "launch", _fail)
    with pytest.raises(_BrokenOff):
        beside.advance()
    beside.cancel()
    model.release(other)
    assert_same(finish(model, state, reading), wanted)
    assert_same(alone(model, SHORT), short)


def _fail(*_: object) -> None:
    raise _BrokenOff


def test_what_is_ahead_of_a_read_that_is_set_aside_counts_its_way_back() -> None:
    model = chunked_model("qwen3_moe")
    for text in (LONG, SHORT):
        alone(model, text)
    state, reading, *_ = pair(model, 1, 1)
    ahead = reading.ahead  # type: ignore[attr-defined]
    assert ahead.spare == 0.0 and ahead.next_step is not None and ahead.next_step >= 0.0
    reading.cancel()
    model.release(state)


def cancel_pairs(model: StageModel, count: int) -> None:
    """Two reads under way, given up in either order, at any step."""
    for number in range(count):
        state, reading, other, beside = pair(model, number % 3, 1 + number // 3 % 2)
        for each in (reading, beside) if number % 2 else (beside, reading):
            each.cancel()
        for slot in (state, other):
            model.release(slot)


@needs_library
def test_cancelled_pairs_leave_nothing() -> None:
    with chunked_in_tiers("qwen3_moe", "none", Tiering(0.25), context=160) as (model, _):
        wanted = alone(model, LONG)
        cancel_pairs(model, 4)
        before = host_bytes()
        cancel_pairs(model, 18)
        assert host_bytes() - before < 8 << 20
        assert_same(alone(model, LONG), wanted)
        tiers = model.stage.stages[0].model.tiers
        assert tiers is not None and not tiers.seats_are_held
