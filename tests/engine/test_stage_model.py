"""A model over a stage, on CPU tensors: the CPU's logits, rows whose bits nothing else decides, slots and ways back."""

import itertools
from collections.abc import Sequence

import pytest
import torch

from strata.engine.stage import Stage, StageSizes, Variant
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.errors import EngineError, RequestError
from strata.models.base import LogitRows, Segment
from strata.native import library
from strata.native.pool import Pool
from strata.quant.cell_codes import CellKind
from strata.state.checkpoints import checkpoint_bytes, fork, go_back, take_checkpoint
from tests.engine.stages import EVERY_STATE, TINY, native_model, stage_model
from tests.engine.tiered_stages import Tiering, tiered
from tests.random_text import text_of

every_state = pytest.mark.parametrize("family", EVERY_STATE)
needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


def read(model: StageModel, state: StageSlot, text: torch.Tensor, cuts: Sequence[int] = ()) -> torch.Tensor:
    """All logits of the text, read in pieces."""
    bounds = [0, *cuts, len(text)]
    pieces = [text[start:stop] for start, stop in itertools.pairwise(bounds)]
    return torch.cat([model.read([Segment(state, piece)], LogitRows.ALL).logits for piece in pieces])


def read_alone(model: StageModel, text: torch.Tensor) -> torch.Tensor:
    """The same in a slot that is given back."""
    state = model.new_state()
    logits = read(model, state, text)
    model.release(state)
    return logits


def decode(model: StageModel, state: StageSlot, text: torch.Tensor) -> torch.Tensor:
    """Logits of windows of one row, each committed."""
    logits = []
    for token in text.split(1):
        window = model.window([Segment(state, token)])
        model.commit(window, [1])
        logits.append(window.output.logits)
    return torch.cat(logits)


@needs_library
@pytest.mark.parametrize("family", TINY)
def test_logits_are_those_of_the_cpu_within_rounding(family: str) -> None:
    model, native, text = stage_model(family, kind=CellKind.F32), native_model(family), text_of(70)
    wanted = native.read([Segment(native.new_state(), text)], LogitRows.ALL).logits
    assert (read(model, model.new_state(), text) - wanted).abs().max() < 1e-4


@every_state
def test_windows_of_another_slot_between_those_of_a_read_change_nobodys_bits(family: str) -> None:
    model, text, other = stage_model(family), text_of(100), text_of(30)
    wanted, alone = read_alone(model, text), read_alone(model, other)
    state, beside = model.new_state(), model.new_state()
    decoded = [read(model, beside, other[:25])]
    reading = model.begin_read(Segment(state, text), LogitRows.ALL)
    while not reading.advance():  # three times: a step is a window of 32 rows
        decoded.append(decode(model, beside, other[24 + len(decoded)][None]))
    assert torch.equal(reading.finish().logits, wanted)
    assert torch.equal(torch.cat(decoded), alone[:28])


@every_state
def test_a_read_row_has_the_bits_of_a_decoded_one_wherever_the_read_was_cut(family: str) -> None:
    model, text = stage_model(family, slots=3), text_of(45)
    whole = read(model, model.new_state(), text)
    state = model.new_state()
    assert torch.equal(read(model, state, text, cuts=[7, 8, 39]), whole)
    assert state.position == len(text)
    half = model.new_state()
    assert torch.equal(read(model, half, text[:41]), whole[:41])
    assert torch.equal(decode(model, half, text[41:]), whole[41:])


@every_state
def test_only_the_rows_that_are_asked_for_cross_to_the_host(family: str) -> None:
    model, text = stage_model(family, slots=3), text_of(37)
    everything = read(model, model.new_state(), text)
    last = model.read([Segment(model.new_state(), text)], LogitRows.LAST)
    nothing = model.read([Segment(model.new_state(), text)], LogitRows.NONE)
    assert torch.equal(last.logits, everything[-1:])
    assert nothing.logits.shape == (0, 96)
    assert last.hidden.shape == (37, 0)


@every_state
def test_a_window_commits_what_is_accepted_of_each_slot_and_nothing_else(family: str) -> None:
    model = stage_model(family, slots=2, most_drafts=3)
    texts = [text_of(9, 1), text_of(33, 2)]
    alone = [read_alone(model, text) for text in texts]
    states = [model.new_state(), model.new_state()]
    for state, text in zip(states, texts, strict=True):
        read(model, state, text[:-4])
    wrong = torch.tensor([1, 2])
    rows = [torch.cat((texts[0][-4:-2], wrong)), texts[1][-4:]]
    window = model.window([Segment(state, part) for state, part in zip(states, rows, strict=True)])
    assert torch.equal(window.output.logits[:2], alone[0][-4:-2])
    assert torch.equal(window.output.logits[4:], alone[1][-4:])
    model.commit(window, [2, 0])
    model.commit(window, [0, 4])
    assert [state.position for state in states] == [7, 33]
    assert torch.equal(read(model, states[0], texts[0][-2:]), alone[0][-2:])
    model.release(states[0])
    more = text_of(3, 3)
    assert torch.equal(read(model, states[1], more), read_alone(model, torch.cat((texts[1], more)))[-3:])


@pytest.mark.parametrize("logit_rows", LogitRows)
def test_a_read_has_been_done_when_it_returns(logit_rows: LogitRows, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stage_model("llama")
    done: list[str] = []
    run = model.run

    def noting(variant: Variant, bucket: int) -> None:
        done.append(variant.value)
        run(variant, bucket)

    model.run = noting
    monkeypatch.setattr(model.stage, "wait_here", lambda: done.append("waited"))
    model.read([Segment(model.new_state(), text_of(40))], logit_rows)
    assert done[-1] == "waited"
    assert len(done) > 2


def test_a_commit_needs_the_rows_that_were_computed_last() -> None:
    model = stage_model("llama")
    state = model.new_state()
    read(model, state, text_of(3))
    window = model.window([Segment(state, text_of(1))])
    with pytest.raises(ValueError, match="accepted 2 of 1 rows"):
        model.commit(window, [2])
    model.read([Segment(model.new_state(), text_of(2))])
    with pytest.raises(ValueError, match="gone"):
        model.commit(window, [1])


def test_rows_that_cannot_be_computed_are_refused() -> None:
    model = stage_model("llama", context=40)
    state = model.new_state()
    assert model.max_position == 40
    with pytest.raises(RequestError, match="41 tokens are more than this model's context of 40"):
        model.read([Segment(state, text_of(41))])
    with pytest.raises(RequestError, match="token id 96"):
        model.window([Segment(state, torch.tensor([96]))])
    with pytest.raises(RequestError, match="at least one token"):
        model.read([Segment(state, text_of(0))])


def test_slots_are_given_out_and_taken_back() -> None:
    model = stage_model("llama", slots=2)
    first, second = model.new_state(), model.new_state()
    with pytest.raises(EngineError, match="all 2 slots"):
        model.new_state()
    read(model, first, text_of(30, 5))
    model.release(first)
    model.release(first)
    third = model.new_state()
    assert third.index == first.index != second.index
    assert third.position == 0
    with pytest.raises(EngineError, match="all 2 slots"):
        model.new_state()


@every_state
def test_a_slot_that_was_used_before_starts_as_a_fresh_one(family: str) -> None:
    """Even behind a conversation whose numbers were not finite."""
    model, text = stage_model(family, slots=1), text_of(20)
    wanted = read_alone(model, text)
    whole = model.stage.stages[0].state
    heads = (whole.keys.codes, whole.values.codes)
    for left in (whole.delta, whole.conv_tail, whole.ngram_tail, *heads, whole.raw, whole.pooled):
        left.fill_(float("nan"))
    assert torch.equal(read(model, model.new_state(), text), wanted)


@every_state
@pytest.mark.parametrize("is_mark", [False, True])
def test_going_back_and_taking_another_way(family: str, is_mark: bool) -> None:
    model, text, other = stage_model(family), text_of(50), text_of(30, 9)
    state = model.new_state()
    read(model, state, text[:37])
    saved = take_checkpoint(state, is_mark=is_mark)
    assert checkpoint_bytes(saved) == (0 if is_mark else saved_bytes(model))
    before = read(model, state, text[37:])
    read(model, state, other)
    assert go_back(state, saved) is state
    assert state.position == 37
    assert torch.equal(read(model, state, text[37:]), before)


def saved_bytes(model: StageModel) -> int:
    state = model.stage.stages[0].state
    whole = (state.delta, state.conv_tail, state.ngram_tail, state.history)
    return sum(tensor.numel() * tensor.element_size() for tensor in whole) // state.slots


@every_state
def test_a_fork_and_its_source_go_their_own_ways(family: str) -> None:
    model, text, other = stage_model(family), text_of(60), text_of(20, 9)
    state = model.new_state()
    read(model, state, text[:33])
    saved = take_checkpoint(state)
    rest = read(model, state, text[33:])
    made = fork(state, saved)
    assert (made.position, state.position) == (33, 60)
    read(model, made, other)
    with pytest.raises(EngineError, match="all 2 slots"):
        fork(state, saved)
    model.release(made)
    again = fork(state, saved)
    assert torch.equal(read(model, again, text[33:]), rest)
    model.release(again)
    assert torch.equal(read(model, state, other), read_alone(model, torch.cat((text, other)))[60:])


@every_state
def test_the_last_two_marks_of_a_slot_stand_and_are_no_others(family: str) -> None:
    model, text = stage_model(family), text_of(64)
    first, second = model.new_state(), model.new_state()
    logits = read(model, first, text[:10])
    marks = []
    for stop in (20, 30, 40):
        marks.append(take_checkpoint(first, is_mark=True))
        read(model, second, text_of(10, stop))
        take_checkpoint(second, is_mark=True)
        logits = torch.cat((logits, read(model, first, text[stop - 10 : stop])))
    for mark, position in ((marks[2], 30), (marks[1], 20)):
        go_back(first, mark)
        assert first.position == position
        assert torch.equal(read(model, first, text[position:40]), logits[position:40])


def test_numbers_that_are_not_finite_are_an_engine_error() -> None:
    model = stage_model("llama")
    state = model.new_state()
    read(model, state, text_of(5))
    model.stage.stages[0].state.values.codes[:, state.index, 2].fill_(float("nan"))
    with pytest.raises(EngineError, match="not finite"):
        model.window([Segment(state, text_of(1))])
    with pytest.raises(EngineError, match="not finite"):
        model.read([Segment(state, text_of(1))])
    other = model.new_state()
    assert torch.isfinite(read(model, other, text_of(5))).all()


@needs_library
def test_a_stage_tells_where_its_experts_were_computed_if_that_is_not_one_place() -> None:
    with Pool(2) as pool, tiered("qwen3_moe", "code8", Tiering(0.5, 0.5), pool) as (built, description):
        stage = Stage(description, StageSizes(1, 64))
        model = StageModel(stage, stage.run, built.config, built.experts_per_row)
        read_alone(model, text_of(20, 1))
        read_alone(model, text_of(1, 2))
        counted = model.experts_counted
        assert counted is not None
        assert list(counted) == ["vram", "pcie", "cpu"]
        assert min(counted.values()) > 0
        tiers = description.tiers
        assert tiers is not None
        assert sum(counted.values()) == sum(int(tables.asked.sum()) for tables in tiers.tables)
        told = "0 windows are in flight, and none waits for the CPU"
        assert model.waiting_for == tiers.windows[0].waiting_for() == told
    assert stage_model("qwen3_moe").experts_counted is None
    assert stage_model("qwen3_moe").waiting_for is None
