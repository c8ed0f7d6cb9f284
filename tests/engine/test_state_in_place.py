"""Windows of the device and reads write the delta nets' state themselves where rows are certain to become state.

What they leave has the bits of the host's commits, and where a row turns out not to become state after all, nobody
goes on from it.
"""

from typing import Any

import pytest
import torch

from strata.engine.device_windows import DeviceWindows
from strata.engine.reply import Reply
from strata.engine.slot import Slot
from strata.engine.stage import RowsPart, Stage, Variant
from strata.engine.stage_slots import SlotCopy
from strata.engine.window import WindowPart
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import OUT_OF_BUDGET, STOPPED, PartResult, read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.models.base import LogitRows, Segment
from strata.models.device.state import SavedSlot
from strata.sampling.sampler import Sampler
from strata.types import FinishReason
from tests.engine.served import Served, ask
from tests.engine.stages import stage_engine, stage_model
from tests.random_text import token_ids_of

FAMILY = "qwen4_exp"  # every kind of state
PROMPT, LENGTH = token_ids_of(30, 1), 30
NAN = float("nan")


def stage_of(slots: int = 3, most_drafts: int = 0) -> Stage:
    """A stage whose slots have all read the prompt."""
    stage = stage_model(FAMILY, slots, most_drafts=most_drafts).stage.stages[0]
    for slot in range(slots):
        read_prompt(stage, slot)
    return stage


def read_prompt(stage: Stage, slot: int) -> None:
    stage.reset_slot(slot)
    stage.set_rows(32, [RowsPart(slot, 0, PROMPT)])
    stage.read(32)


def by_host(stage: Stage, slot: int, tokens: list[int]) -> SavedSlot:
    """The state behind tokens that come after the prompt, computed in one window and then committed."""
    stage.set_rows(32, [RowsPart(slot, LENGTH, tokens)])
    stage.forward(32)
    stage.set_accepted([len(tokens)])
    stage.commit(32)
    return stage.state.save(slot, LENGTH + len(tokens))


def assert_same(found: SavedSlot, wanted: SavedSlot) -> None:
    for mine, other in zip(found.tensors, wanted.tensors, strict=True):
        assert torch.equal(mine, other)


def results(stage: Stage) -> list[PartResult]:
    return list(read_results(stage.results.words.tolist(), stage.segments, stage.sizes.most_drafts)[1])


def begin(stage: Stage, slot: int, budget: int = 9, stop_ids: tuple[int, ...] = ()) -> int:
    """A greedy reply behind the prompt; returns its first token, which is given."""
    stage.set_reply(slot, ReplyStart(LENGTH, 5 + slot, budget, stop_ids, ChoiceOptions()))
    return 5 + slot


def test_a_read_leaves_what_a_window_and_its_commit_leave() -> None:
    stage, tokens = stage_of(2), token_ids_of(7, 2)
    stage.set_rows(32, [RowsPart(1, LENGTH, tokens)])
    stage.read(32)
    assert_same(stage.state.save(1, LENGTH + 7), by_host(stage, 0, tokens))


@pytest.mark.parametrize(("variant", "most_drafts"), [(Variant.WINDOW, 0), (Variant.UNFILTERED_WINDOW, 3)])
def test_the_devices_windows_leave_what_the_hosts_leave(variant: Variant, most_drafts: int) -> None:
    """Slots of one row each; where drafts may come, another launch has made what the rule reads."""
    stage = stage_of(3, most_drafts)
    rows = [[begin(stage, slot)] for slot in (0, 1)]
    stage.set_plan(1, [PlannedPart(1), PlannedPart(0)])
    for _ in range(2):
        stage.run(variant, stage.bucket_for(2))
        for part in results(stage)[:2]:
            rows[part.slot] += part.tokens
    for slot in (0, 1):
        found, tokens = stage.state.save(slot, LENGTH + 2), rows[slot][:2]
        assert_same(found, by_host(stage, 2, tokens))
        read_prompt(stage, 2)


def test_a_slot_of_one_row_beside_one_with_drafts_right_and_wrong() -> None:
    stage = stage_of(3, most_drafts=3)
    first = begin(stage, 0)
    stage.set_plan(1, [PlannedPart(0)])
    stage.window(1)
    second = results(stage)[0].tokens[0]
    other = begin(stage, 1)
    stage.set_plan(2, [PlannedPart(0), PlannedPart(1, ((second + 1) % 96, 3))])
    stage.window(4)
    alone, drafted, _ = results(stage)
    assert len(alone.tokens) == 1
    assert 1 <= len(drafted.tokens) < 3, "a wrong draft stands"
    found = [stage.state.save(0, LENGTH + 2), stage.state.save(1, LENGTH + len(drafted.tokens))]
    assert_same(found[0], by_host(stage, 2, [first, second]))
    read_prompt(stage, 2)
    assert_same(found[1], by_host(stage, 2, [other, *drafted.tokens[:-1]]))


def test_a_window_of_the_host_leaves_every_state_until_it_is_committed() -> None:
    stage = stage_of()
    before = [tensor.clone() for tensor in (stage.state.delta, stage.state.conv_tail, stage.state.ngram_tail)]
    stage.set_rows(3, [RowsPart(0, LENGTH, [3]), RowsPart(1, LENGTH, [4, 5])])
    stage.forward(3)
    stage.set_accepted([0, 0])
    stage.commit(3)
    after = (stage.state.delta, stage.state.conv_tail, stage.state.ngram_tail)
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("reason", [STOPPED, OUT_OF_BUDGET])
def test_a_window_behind_the_end_of_a_reply_leaves_its_state(reason: int) -> None:
    """It was under way when the reply ended: the state stays behind the last row whose token stands."""
    stage = stage_of()
    begin(stage, 0)
    stage.set_plan(1, [PlannedPart(0)])
    stage.window(1)
    token = results(stage)[0].tokens[0]
    read_prompt(stage, 0)
    first = begin(stage, 0, stop_ids=(token,)) if reason == STOPPED else begin(stage, 0, budget=1)
    begin(stage, 1)
    stage.set_plan(2, [PlannedPart(0), PlannedPart(1)])
    stage.window(2)
    assert (results(stage)[0].tokens, results(stage)[0].reason) == ((token,), reason)
    stage.window(2)
    assert [len(part.tokens) for part in results(stage)[:2]] == [0, 1]
    assert_same(stage.state.save(0, LENGTH + 1), by_host(stage, 2, [first]))


def spoil(served: Served, number: int) -> None:
    """A slot's logits are not finite from its next window on."""
    model: Any = served.engine.model
    model.stage.stages[0].state.delta[0, served.engine._slots[number].state.index].fill_(NAN)


def serve(slots: int = 2, *, is_ahead: bool = True) -> Served:
    return Served(stage_engine(stage_model(FAMILY, slots), is_ahead=is_ahead), slots)


def fresh(tokens: list[int], count: int) -> list[int]:
    """The greedy reply of an engine that has served nobody."""
    return serve(1, is_ahead=False).ask(ask(tokens, count))


def running(served: Served, number: int, prompt: list[int], count: int, left: int = 4) -> None:
    """A request of which `count` tokens have come, with a window under way if there may be one."""
    served.submit(number, ask(prompt, count + left))
    while len(served.replies[number]) < count:
        served.turn()


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_failed_request_leaves_nothing_and_the_others_go_on(is_ahead: bool) -> None:
    served = serve(is_ahead=is_ahead)
    running(served, 1, token_ids_of(9, 1), 3, left=12)
    running(served, 2, token_ids_of(8, 2), 3)
    spoil(served, 0)
    served.finish()
    assert served.ends[1].reason is FinishReason.ERROR
    assert "not finite" in (served.ends[1].error or "")
    assert served.replies[2] == fresh(token_ids_of(8, 2), 7)
    assert served.ask(ask(token_ids_of(9, 1), 4)) == fresh(token_ids_of(9, 1), 4)


def test_a_cancelled_reply_whose_window_failed_is_not_gone_on_from() -> None:
    """The window was under way when the caller left: the next turn fails or is read again, never continued."""
    served = serve(1)
    running(served, 1, PROMPT, 6)
    spoil(served, 0)
    served.turn()  # lands a window from before, launches one that fails
    served.scheduler.cancel(1, 5)
    turn = [*PROMPT, *served.replies[1][:5], *token_ids_of(2, 9)]
    served.submit(2, ask(turn, 3))
    served.finish()
    assert "has just failed: ask again" in (served.ends[2].error or "")
    assert served.ask(ask(turn, 3)) == fresh(turn, 3)
    assert list(served.ends.values())[-1].usage.cached_tokens == 0


def test_a_prompt_is_not_forked_from_a_reply_whose_window_failed() -> None:
    served = serve(2)
    prompt = token_ids_of(70, 10)
    running(served, 1, prompt, 4)
    spoil(served, 0)
    served.turn()
    other = [*prompt[:66], *token_ids_of(3, 11)]
    served.submit(2, ask(other, 3))
    served.finish()
    assert served.ends[1].reason is FinishReason.ERROR
    assert "has just failed: ask again" in (served.ends[2].error or "")
    assert served.ask(ask(other, 3)) == fresh(other, 3)


def read(slot: Slot, token_ids: list[int]) -> None:
    reading = slot.begin_read(torch.tensor(token_ids), LogitRows.NONE, ())
    while not reading.advance():
        pass
    reading.finish()


def failed_slot() -> tuple[Slot, SlotCopy]:
    """A slot whose window behind the prompt has failed, and a mark that was taken behind it while it was under way."""
    model = stage_model(FAMILY, 2)
    slot = Slot(model, model.new_state(), None)
    read(slot, PROMPT)
    slot.begin_reply()
    request = ask(PROMPT, 9)
    sampler = Sampler(request.options, model.vocabulary_size, PROMPT, 0)
    part = WindowPart(slot, Reply(request, sampler, torch.tensor(PROMPT), budget=9, last_token=5), ())
    model.stage.stages[0].state.delta[0, slot.state.index].fill_(NAN)
    windows = DeviceWindows(model)
    windows.begin({0: part})
    launched = windows.launch({0: part})
    mark = slot.take_mark()
    assert "not finite" in str(windows.land(launched)[0].failure)
    return slot, mark


def test_a_slot_whose_window_failed_refuses_to_go_on_and_is_mended_by_going_back() -> None:
    slot, mark = failed_slot()
    for go_on in (
        slot.take_mark,
        lambda: read(slot, [3]),
        lambda: slot.model.window([Segment(slot.state, torch.tensor([3]))]),
    ):
        with pytest.raises(AssertionError, match="nobody goes on from a window that failed"):
            go_on()
    with pytest.raises(AssertionError, match="windows land before anyone goes back"):
        slot.state.go_back(mark)
    slot.state.go_back(slot.marks[0].state)
    model: Any = slot.model
    stage, tokens = model.stage, token_ids_of(4, 3)
    read_prompt(stage, 1 - slot.state.index)
    assert_same(by_host(stage, slot.state.index, tokens), by_host(stage, 1 - slot.state.index, tokens))
