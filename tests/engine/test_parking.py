"""Conversations that give their slots away and come back, through an engine: tokens, books, failures, leaks."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from strata.engine import parked_cells
from strata.engine.engine import TokenEngine
from strata.engine.parked_slot import ParkedSlot
from strata.engine.parking import LOST, Parking
from strata.engine.point_keeper import PointKeeper
from strata.engine.points import PointBudget
from strata.engine.slot import Slot
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.engine.steps import Open, Park, ParkingSpace
from strata.errors import EngineError
from strata.scheduler import parked
from strata.types import FinishReason
from tests.engine.fake_model import FakeModel, continuation
from tests.engine.parked_checks import assert_equal
from tests.engine.parked_turns import ROOM, check_turns, engine_with_parking, take_turns
from tests.engine.served import SETTINGS, Served, ask
from tests.engine.stages import CPU, EVERY_STATE, stage_model
from tests.random_text import token_ids_of

SPACE = ParkingSpace(1 << 20, 100, 8.0)
TEXT, OTHER = token_ids_of(270, 1), token_ids_of(266, 2)
LLAMA = "llama"  # quick, and its state is cells alone


def fake_engine(model: FakeModel, space: ParkingSpace = SPACE, points: int = 8) -> TokenEngine:
    return TokenEngine(model, replace(SETTINGS, context=1024), points=PointBudget(points, 1), parking=space)


def fake_text(length: int, first: int) -> list[int]:
    return [(first + number * number) % 32 for number in range(length)]


def test_a_state_in_main_memory_stays_the_same_object() -> None:
    model = FakeModel(max_position=1024)
    served = Served(fake_engine(model), 1)
    first, second = fake_text(300, 1), fake_text(310, 2)
    reply = served.ask(ask(first, 5))
    served.ask(ask(second, 5))
    assert (len(model.states), model.released) == (2, [])
    assert served.engine.memory()["parked"] == 8 * 304
    follow_up = [*first, *reply, 4, 5, 6]
    assert served.ask(ask(follow_up, 5)) == continuation(6, 5)
    assert (len(model.states), model.states[0].tokens[: len(follow_up)]) == (2, follow_up)
    assert served.scheduler.statistics().parked["rows"] == 304


@pytest.mark.parametrize("name", EVERY_STATE)
def test_turns_in_one_slot_are_those_of_a_slot_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked, "LEAST_ROWS", 64)
    check_turns(name, CPU, count=2, rounds=2, rows=70)


def test_where_this_side_chooses_tokens_it_is_the_same() -> None:
    apart = Served(engine_with_parking(stage_model(LLAMA, 2), 0, is_ahead=False), 2)
    shared = Served(engine_with_parking(stage_model(LLAMA, 1), is_ahead=False), 1)
    assert take_turns(shared, 2, 2) == take_turns(apart, 2, 2)


def test_a_reply_that_was_cut_is_parked_where_the_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot goes back to a mark and decodes the rows behind it again before it moves."""
    told = []
    for slots, room in ((2, 0), (1, ROOM)):
        served = Served(engine_with_parking(stage_model(LLAMA, slots), room), slots)
        served.submit(1, ask(TEXT, 60))
        while len(served.replies[1]) < 45:
            served.turn()
        served.scheduler.cancel(1, 38)
        served.finish()
        served.ask(ask(OTHER, 4))
        kept = served.replies[1][:38]
        told.append([kept, served.ask(ask([*TEXT, *kept, 3, 1, 4], 8))])
        assert served.ends[max(served.ends)].usage.cached_tokens == len(TEXT) + 37
    assert told[0] == told[1]


def test_a_request_that_ended_and_is_cut_when_it_lies_in_main_memory_is_read_from_a_point() -> None:
    served = Served(engine_with_parking(stage_model(LLAMA, 1)), 1)
    served.submit(1, ask(TEXT, 20))
    served.submit(2, ask(OTHER, 4))
    served.finish()
    kept = served.replies[1][:9]
    served.scheduler.cancel(1, 9)
    number = 1000 + len(served.replies)
    follow_up = ask([*TEXT, *kept, 3, 1, 4], 8)
    found = served.ask(follow_up)
    assert served.ends[number].usage.cached_tokens == 256
    assert "tokens 256 to 278 were read again" in served.ends[number].notices[0]
    fresh = Served(engine_with_parking(stage_model(LLAMA, 1), 0), 1)
    assert fresh.ask(follow_up) == found


def test_a_beginning_is_copied_from_a_parked_conversation_that_stays() -> None:
    branch = ask([*TEXT[:259], *token_ids_of(600 - 259, 9)], 6)
    served = Served(engine_with_parking(stage_model(LLAMA, 1, context=1024)), 1)
    reply = served.ask(ask(TEXT, 6))
    served.ask(ask(OTHER, 4))
    long = token_ids_of(500, 7)
    served.ask(ask([*TEXT, *reply, *long], 4))  # takes it over
    served.ask(ask(OTHER, 4))
    found = served.ask(branch)  # and this one shares a third of it
    fresh = Served(engine_with_parking(stage_model(LLAMA, 1, context=1024), 0), 1)
    assert fresh.ask(branch) == found
    assert served.ends[max(served.ends)].usage.cached_tokens == 256
    assert served.scheduler.statistics().parked["kept"] == 2


def test_answers_do_not_depend_on_it_where_turns_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def served(slots: int, room: int) -> Served:
        made = Served(engine_with_parking(stage_model(LLAMA, slots), room), slots)
        limits = replace(made.scheduler._limits, keep_turns=False)
        made.scheduler = type(made.scheduler)(made.engine, limits)
        return made

    shared, answers = served(1, ROOM), []
    texts = [TEXT, OTHER]
    for _ in range(2):
        for number, text in enumerate(texts):
            reply = shared.ask(ask(text, 9))
            answers.append((text, reply))
            texts[number] = [*text, *reply, 5, 6]
    assert shared.scheduler.statistics().parked["returned"] == 2
    for text, reply in answers:
        assert served(1, 0).ask(ask(text, 9)) == reply


def test_conversations_without_room_are_read_again_and_the_reply_says_so() -> None:
    model = stage_model(LLAMA, 1)
    model.slots.parked.make_room(1 << 20, 512, None)
    one = model.slots.parked.space.size(300)
    served = Served(engine_with_parking(model, one), 1)
    texts = [token_ids_of(280, number) for number in range(3)]
    replies = [served.ask(ask(text, 6)) for text in texts]
    counts = served.scheduler.statistics().parked
    assert (counts["kept"], counts["dropped"], counts["room"]) == (1, 1, one)
    assert served.engine.memory()["parked"] == counts["bytes"] <= one
    served.ask(ask([*texts[0], *replies[0], 3], 4))
    (notice,) = served.ends[max(served.ends)].notices
    assert "the kept state of this conversation was dropped" in notice


@pytest.mark.parametrize("failing", ["park", "unpark"])
def test_what_fails_on_the_way_costs_a_read_and_no_request(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stage_model(LLAMA, 1)
    served = Served(engine_with_parking(model), 1)
    reply = served.ask(ask(TEXT, 6))

    def fail(*_: Any, **__: Any) -> Any:
        raise EngineError("the link is broken")

    where: Any = model.slots.parked
    with monkeypatch.context() as patch:
        if failing == "park":
            patch.setattr(where, "park", fail)
        served.ask(ask(OTHER, 4))
        if failing == "unpark":
            patch.setattr(where, "bring", fail)
        follow_up = ask([*TEXT, *reply, 3], 8)
        found = served.ask(follow_up)
    ended = served.ends[max(served.ends)]
    assert ended.usage.cached_tokens == 0 and ended.notices
    assert ("the link is broken" in ended.notices[0]) == (failing == "unpark")
    assert Served(engine_with_parking(stage_model(LLAMA, 1), 0), 1).ask(follow_up) == found
    assert served.ask(follow_up) == found  # and the slot is as good as ever


def test_an_engine_that_has_no_room_leaves_the_slot_as_it_was() -> None:
    """A prompt that was to go on from the parked conversation goes on in its slot."""
    model = FakeModel(max_position=1024)
    served = Served(fake_engine(model), 1)
    served.ask(ask(fake_text(300, 1), 5))
    slot = served.engine._slots[0]
    slot.state.__class__.park = lambda _: None
    slot.state.__class__.moves_on = lambda _: False
    try:
        request = ask([*fake_text(300, 1)[:260], 9], 5)
        step = Open(0, request, source=7, position=256, park=Park(7, tuple(slot.state.tokens)))
        (opened,) = served.engine.run(step)
    finally:
        del slot.state.__class__.park, slot.state.__class__.moves_on
    assert (opened.is_parked, opened.begins_anew, opened.error) == (False, False, None)
    assert served.engine._slots[0].position == 256


def test_what_an_open_names_and_is_not_there_is_lost_and_said() -> None:
    served = Served(fake_engine(FakeModel(max_position=1024)), 1)
    step = Open(0, ask(fake_text(300, 1), 5), source=3, position=256, dropped=(3, 4), park=Park(5, (1, 2)))
    (opened,) = served.engine.run(step)
    assert (opened.is_parked, opened.begins_anew) == (False, True)
    assert opened.notices == (LOST,)
    step = Open(1, ask(fake_text(300, 1), 5), source=5, position=64, park=Park(5, (1, 2)))
    (opened,) = served.engine.run(step)  # to be parked, but its slot has nothing that could be
    assert (opened.is_parked, opened.error, served.engine._slots[1].position) == (False, None, 0)


def test_a_conversation_that_fails_where_it_was_to_go_on_from_costs_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stage_model(LLAMA, 1)
    served = Served(engine_with_parking(model), 1)
    served.ask(ask(TEXT, 6))

    def fail(*_: Any, **__: Any) -> Any:
        raise EngineError("the link is broken")

    monkeypatch.setattr(model.slots.parked, "park", fail)
    served.engine._slots[0].points = [point for point in served.engine._slots[0].points if point.position <= 64]
    branch = ask([*TEXT[:65], *token_ids_of(200, 9)], 6)
    step = Open(0, branch, source=1, position=64, park=Park(1, tuple(TEXT[:270])))
    (opened,) = served.engine.run(step)
    assert (opened.error, opened.begins_anew, opened.notices) == (None, True, (LOST,))


def test_a_failed_open_leaves_nothing_half_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is copied over the rows of what was parked."""
    monkeypatch.setattr(parked_cells, "PART_BYTES", 4096)
    model = stage_model(LLAMA, 2)
    served = Served(engine_with_parking(model), 2)
    reply = served.ask(ask(TEXT, 6))
    served.ask(ask(OTHER, 4))
    wanted = model.stage.stages[0].state.save(served.engine._slots[0].state.index, 275)
    (opened,) = served.engine.run(Open(0, ask([1, 2], 3), source=7, position=1, park=Park(2, (*TEXT, *reply[:5]))))
    assert opened.is_parked and opened.error is not None
    served.engine.run(Open(0, ask([*OTHER, 4, 4], 3), source=1, position=256))
    served.engine.run(Open(1, ask([*TEXT, *reply, 3], 3), source=2, position=275, dropped=(2,)))
    while served.engine._parking.moves_on():
        pass
    assert_equal(model.stage.stages[0].state.save(served.engine._slots[1].state.index, 275), wanted)


def test_windows_of_others_come_in_between_and_a_cancel_at_any_part_is_harmless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parked_cells, "PART_BYTES", 4096)
    model = stage_model(LLAMA, 2)
    served = Served(engine_with_parking(model), 2)
    reply = served.ask(ask(TEXT, 6))
    served.submit(1, ask(token_ids_of(20, 8), 400))  # runs all the time
    while not served.replies[1]:
        served.turn()
    _finish(served, 2, ask(OTHER, 4))
    follow_up = ask([*TEXT, *reply, 3], 8)
    for turns in (1, 2, 5):
        served.submit(10 + turns, follow_up)
        before = len(served.replies[1])
        for _ in range(turns):
            served.turn()
        served.scheduler.cancel(10 + turns, 0)
        _finish(served, 20 + turns, ask(OTHER[: 262 + turns], 4))
        assert len(served.replies[1]) > before
    _finish(served, 40, follow_up)
    fresh = Served(engine_with_parking(stage_model(LLAMA, 1), 0), 1)
    fresh.ask(ask(TEXT, 6))
    assert fresh.ask(follow_up) == served.replies[40]
    assert served.ends[40].usage.cached_tokens >= 256
    served.scheduler.cancel(1)
    served.finish()


def _finish(served: Served, number: int, request: Any) -> None:
    served.submit(number, request)
    while number not in served.ends:
        served.turn()
    assert served.ends[number].reason is FinishReason.LENGTH


def test_five_hundred_moves_leave_nothing_behind() -> None:
    model: StageModel = stage_model(LLAMA, 2)
    engine = engine_with_parking(model)
    served = Served(engine, 1)
    served.ask(ask(TEXT, 2))
    slot, places = engine._slots.pop(0), model.slots.parked
    for number in range(500):
        assert slot.park(TEXT)
        copy = slot.forked(256, TEXT, number)
        slot.unpark()
        assert copy.park(TEXT[:256])
        copy.release()
    while slot.moves_on():
        pass
    assert (slot.position, places.bytes_used(places._last_key), places._rows) == (len(TEXT), 0, {})
    slot.release()
    assert len(model.slots._free) == 2
    assert len(_states_of(model)) < 10


def _states_of(model: StageModel) -> list[object]:
    """Slots that are alive."""
    gc.collect()
    kinds = (StageSlot, ParkedSlot)
    return [each for each in gc.get_objects() if type(each) in kinds and each._slots is model.slots]


def test_points_of_parked_conversations_are_lent_alone() -> None:
    model = FakeModel(max_position=1024)
    slots = {number: Slot(model, model.new_state(), None, use=number) for number in range(4)}
    keeper = PointKeeper(PointBudget(8, 1))
    parking = Parking(slots, keeper)
    for number, slot in tuple(slots.items()):
        for point in (64, 128, 192):
            keeper.make_room(slots, number, [point])
            slot.state.tokens += [1] * 64
            slot.add_point()
        if number:
            slot.state.tokens += [1] * 5
            step = Open(number, ask([1], 1), park=Park(10 + number, (1,) * 197))
            assert parking.make_way(step)
    assert _positions(slots[0]) == [64, 128, 192], "what a slot has is its own, and room for one more"
    assert sum(len(_positions(slots[place])) for place in (11, 12, 13)) == 4
    assert _positions(slots[13])[-1] == 192


def test_a_passing_point_asks_for_room_when_its_slot_is_parked() -> None:
    model = FakeModel(max_position=1024)
    slots = {0: Slot(model, model.new_state(), None)}
    slots[0].state.tokens += [1] * 64
    slots[0].add_point(is_passing=True)
    slots[0].state.tokens += [1] * 40
    parking = Parking(slots, PointKeeper(PointBudget(1, 1)))
    assert parking.make_way(Open(0, ask([1], 1), park=Park(1, (1,) * 104)))
    assert (slots[1].points, slots[1].position) == ([], 104), "the only one is a slot's"


def _positions(slot: Slot) -> Sequence[int]:
    return [point.position for point in slot.points]
