"""Prompts in chunks, layer by layer, on CPU tensors: windows' logits within rounding, and bits that no cut changes."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from strata.engine.read_pace import ReadSteps
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.models.base import LogitRows, Segment
from strata.models.device.description import SparseMlp
from strata.native import library
from strata.quant.cell_codes import CellKind
from strata.state.checkpoints import go_back, take_checkpoint
from tests.engine.chunked_stages import CHUNKED, chunked_in_tiers, chunked_model
from tests.engine.stages import EVERY_STATE, stage_model
from tests.engine.tiered_stages import Tiering
from tests.random_text import text_of

every_state = pytest.mark.parametrize("family", EVERY_STATE)
needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


def read(model: StageModel, state: StageSlot, text: torch.Tensor, cuts: Sequence[int] = ()) -> torch.Tensor:
    """All logits of the text, read in pieces."""
    bounds = [0, *cuts, len(text)]
    pieces = [text[start:stop] for start, stop in itertools.pairwise(bounds)]
    return torch.cat([model.read([Segment(state, piece)], LogitRows.ALL).logits for piece in pieces])


def decode(model: StageModel, state: StageSlot, text: torch.Tensor) -> torch.Tensor:
    """Logits of windows of one row, each committed."""
    logits = []
    for token in text.split(1):
        window = model.window([Segment(state, token)])
        model.commit(window, [1])
        logits.append(window.output.logits)
    return torch.cat(logits)


def kept(model: StageModel, state: StageSlot) -> list[torch.Tensor]:
    """Copies of all that the slot's rows left behind."""
    return list(model.stage.stages[0].state.save(state.index, state.position).tensors)


def assert_same_state(model: StageModel, one: StageSlot, other: StageSlot) -> None:
    assert one.position == other.position
    for found, wanted in zip(kept(model, one), kept(model, other), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("family", CHUNKED)
def test_logits_are_those_of_windows_within_rounding_and_decoding_goes_on(family: str) -> None:
    """A row whose router was close to a tie may go elsewhere by the rounding of bfloat16: most rows count.

    Of qwen3_5_moe's random weights 0.04 is what windows differ by if their norms alone are rounded.
    """
    model, windows, text = chunked_model(family), stage_model(family), text_of(150)
    mine, theirs = model.new_state(), windows.new_state()
    found, wanted = read(model, mine, text), read(windows, theirs, text)
    error = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert error.median() < (0.08 if family == "qwen3_5_moe" else 0.02)
    assert (found.argmax(1) == wanted.argmax(1)).float().mean() > 0.85
    more = text_of(5, 9)
    behind, in_windows = decode(model, mine, more), decode(windows, theirs, more)
    assert mine.position == 155
    assert ((behind - in_windows).norm(dim=1) / in_windows.norm(dim=1)).median() < 0.1


@every_state
@pytest.mark.parametrize("cuts", [(128, 192), (64, 128, 192, 256, 320)])
def test_cuts_on_the_grid_change_no_bit(family: str, cuts: tuple[int, ...]) -> None:
    model, text = chunked_model(family, capacity=512), text_of(330)
    whole, pieces = model.new_state(), model.new_state()
    assert torch.equal(read(model, pieces, text, cuts), read(model, whole, text))
    assert_same_state(model, pieces, whole)


@pytest.mark.parametrize(("family", "kind"), [("qwen4_exp", CellKind.Q4), ("llama", CellKind.K8V4)])
def test_cuts_and_ways_back_change_no_bit_of_coded_cells(family: str, kind: CellKind) -> None:
    model, text, more = chunked_model(family, kind=kind), text_of(150), text_of(4, 9)
    whole, pieces = model.new_state(), model.new_state()
    wanted = torch.cat((read(model, whole, text), decode(model, whole, more)))
    read(model, pieces, text[:64])
    saved = take_checkpoint(pieces)
    read(model, pieces, text_of(70, 5))
    go_back(pieces, saved)
    assert torch.equal(read(model, pieces, text[64:], [64]), wanted[64:150])
    assert torch.equal(decode(model, pieces, more), wanted[150:])
    assert_same_state(model, pieces, whole)


@every_state
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 128, 129])
def test_chunks_of_any_length_read_a_text(family: str, rows: int) -> None:
    """One row, one chunk, a row more: the text is cut into chunks of at most 128 rows."""
    small, large, text = chunked_model(family, capacity=128), chunked_model(family, capacity=512), text_of(rows)
    mine, theirs = small.new_state(), large.new_state()
    assert torch.equal(read(small, mine, text), read(large, theirs, text))
    assert mine.position == rows


def test_a_context_is_filled_to_its_last_row() -> None:
    model, text = chunked_model("qwen4_exp", context=200, capacity=64), text_of(200)
    state = model.new_state()
    last = model.read([Segment(state, text)]).logits
    assert torch.isfinite(last).all()
    assert state.position == model.max_position == 200


@pytest.mark.parametrize(("family", "by_tiles", "steps"), [("qwen4_exp", True, 12), ("llama", False, 2)])
def test_windows_of_others_between_two_steps_change_no_bit(family: str, by_tiles: bool, steps: int) -> None:
    """Legs or layers; the head's rows are three more steps."""
    model, text, other = chunked_model(family, steps=ReadSteps(by_tiles=by_tiles)), text_of(140), text_of(45, 4)
    alone, beside, stream = model.new_state(), model.new_state(), None
    whole = read(model, alone, text)
    model.release(alone)
    stream = model.new_state()
    read(model, stream, other[:30])
    wanted_model = chunked_model(family)
    wanted_stream = wanted_model.new_state()
    read(wanted_model, wanted_stream, other[:30])
    reading = model.begin_read(Segment(beside, text), LogitRows.ALL)
    rows, tokens = [], iter(other[30:].split(1))
    while not reading.advance():
        rows.append(decode(model, stream, next(tokens)))
    assert torch.equal(reading.finish().logits, whole)
    assert torch.equal(torch.cat(rows), decode(wanted_model, wanted_stream, other[30 : 30 + len(rows)]))
    assert len(rows) == steps + 3 - 1


@every_state
def test_marks_are_the_states_of_reads_that_ended_there(family: str) -> None:
    model, text, marks = chunked_model(family), text_of(250), [64, 128, 192]
    state, short = model.new_state(), model.new_state()
    reading = model.begin_read(Segment(state, text), LogitRows.LAST, marks)
    while not reading.advance():
        pass
    last = reading.finish().logits
    after = kept(model, state)
    for start, mark, saved in zip([0, *marks], marks, reading.checkpoints, strict=False):
        read(model, short, text[start:mark])
        go_back(state, saved)
        assert_same_state(model, state, short)
        assert torch.equal(read(model, state, text[mark:])[-1:], last)
        for found, wanted in zip(kept(model, state), after, strict=True):
            assert torch.equal(found, wanted)


def test_a_mark_behind_a_kept_turn_lies_off_the_chunk_s_own_rows() -> None:
    model, text = chunked_model("qwen4_exp"), text_of(150)
    state, other = model.new_state(), model.new_state()
    for each in (state, other):
        read(model, each, text[:50])
    reading = model.begin_read(Segment(state, text[50:]), LogitRows.LAST, marks=[64])
    while not reading.advance():
        pass
    last = reading.finish().logits
    assert torch.equal(last, read(model, other, text[50:], [14])[-1:])
    go_back(state, reading.checkpoints[0])
    assert state.position == 64


def test_a_cancelled_read_leaves_the_slot_for_others() -> None:
    model, text = chunked_model("qwen4_exp"), text_of(100)
    whole = read(model, model.new_state(), text)
    state = model.new_state()
    for steps in range(len(model.stage.stages[0].model.layers)):
        reading = model.begin_read(Segment(state, text))
        for _ in range(steps):
            reading.advance()
        with pytest.raises(ValueError, match="a read of slot 1 is under way"):
            model.begin_read(Segment(state, text))
        reading.cancel()
        reading.cancel()
        model.release(state)
        state = model.new_state()
    assert torch.equal(read(model, state, text), whole)


def test_rows_that_no_chunk_has_are_refused() -> None:
    model = chunked_model("llama", capacity=64)
    state = model.new_state()
    with pytest.raises(ValueError, match="logits of all of 65 rows: a chunk has 1 to 64"):
        model.begin_read(Segment(state, text_of(65)), LogitRows.ALL)
    with pytest.raises(ValueError, match="mark 60 is no multiple of 64 inside rows 0 to 64"):
        model.begin_read(Segment(state, text_of(64)), marks=[60])
    with pytest.raises(ValueError, match="positive multiple of 64 rows, not 100"):
        chunked_model("llama", capacity=100)


@needs_library
@pytest.mark.parametrize("rows", [3, 150])  # the first waits for its routing, the second sends everything
@pytest.mark.parametrize("family", ["qwen4_exp", "qwen3_5_moe"])
def test_bits_do_not_depend_on_who_has_a_seat(family: str, rows: int) -> None:
    text, found = text_of(rows), []
    for tiering in (Tiering(1.0), Tiering(0.0), Tiering(0.25), Tiering(0.5, is_exclusive=True)):
        with chunked_in_tiers(family, "code8", tiering) as (model, store):
            resident = store.resident.copy()
            found.append(read(model, model.new_state(), text))
            counted = model.experts_counted
            assert counted is not None and bool(counted["prompt_vram"]) is bool(resident.any())
            assert bool(counted["prompt_pcie"]) is not resident.all()
            assert np.array_equal(store.resident, resident)
    assert all(torch.equal(each, found[0]) for each in found)


@needs_library
def test_nobody_changes_seats_while_a_chunk_is_under_way() -> None:
    with chunked_in_tiers("qwen3_5_moe", "code8", Tiering(0.25)) as (model, _):
        tiers, called = model.stage.stages[0].model.tiers, list[bool]()
        assert tiers is not None
        tiers.follow(called.append)
        stream, state = model.new_state(), model.new_state()
        read(model, stream, text_of(20))
        reading = model.begin_read(Segment(state, text_of(70)))
        while not reading.advance():
            decode(model, stream, text_of(1))
        assert called == []
        reading.finish()
        decode(model, stream, text_of(1))
        assert called == [False]


@needs_library
def test_the_experts_of_a_prompt_s_last_rows_are_told_when_it_is_read() -> None:
    """Of the last 64 rows of a prompt, once it is through; of a shorter one nothing."""
    with chunked_in_tiers("qwen3_5_moe", "code8", Tiering(0.25), capacity=128) as (model, _):
        tiers, told = model.stage.stages[0].model.tiers, list[np.ndarray]()
        assert tiers is not None and model.chunks is not None
        tiers.follow(lambda _: None, told.append)
        state, other, text = model.new_state(), model.new_state(), text_of(230)
        read(model, other, text_of(63))
        read(model, other, text_of(64))  # asks for all logits
        assert told == []
        model.read([Segment(state, text)])
        (asked,) = told
        mlps = [layer.mlp for layer in model.stage.stages[0].model.layers if isinstance(layer.mlp, SparseMlp)]
        assert asked.shape == (len(mlps), mlps[0].router.shape[0])
        assert asked.sum(axis=1).tolist() == [64 * mlp.experts_per_token for mlp in mlps]
        assert asked.max() <= 64
        model.read([Segment(other, text[:64])])
        assert not np.array_equal(told[1], asked)
