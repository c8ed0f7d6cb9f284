"""Room for points of several slots: what is granted, who gives up for it, what is counted and said once."""

import logging

import pytest

from strata.engine.engine import TokenEngine
from strata.engine.point_keeper import PointKeeper
from strata.engine.points import PointBudget
from strata.engine.request import TokenRequest
from strata.engine.slot import Slot, open_slot
from strata.engine.steps import Open, Read, SlotResult
from strata.errors import RequestError
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from tests.engine.fake_model import FakeModel


class Slots:
    """Of a model whose state is a list of tokens."""

    def __init__(self, budget: PointBudget) -> None:
        self.model = FakeModel(max_position=4096)
        self.keeper = PointKeeper(budget)
        self.slots: dict[int, Slot] = {}

    def read(self, number: int, points: list[int], use: int) -> tuple[tuple[int, ...], set[int]]:
        """Take those of the points that are granted; returns them, and who gave up points."""
        slot = self.slots.setdefault(number, open_slot(self.model, drafting=False, use=use))
        slot.use = use
        granted = self.keeper.make_room(self.slots, number, points)
        for point in granted:
            slot.state.tokens += [1] * (point - slot.position)
            slot.add_point()
        return granted, self.keeper.take_changed() - {number}

    def positions(self, number: int) -> list[int]:
        return [point.position for point in self.slots[number].points]


def test_a_slot_lends_what_others_do_not_need_and_gives_it_back() -> None:
    slots = Slots(PointBudget(8, 2))
    assert slots.read(0, [64, 128, 192], 1) == ((64, 128, 192), set())
    assert slots.read(0, [256, 320], 2) == ((256, 320), set())
    assert slots.positions(0) == [64, 192, 256, 320]  # four are guaranteed to the other one
    assert slots.read(1, [64, 128, 192, 256], 3) == ((64, 128, 192, 256), set())
    assert slots.read(1, [320], 4) == ((320,), set())
    assert slots.positions(1) == [64, 192, 256, 320]


def test_more_points_than_there_is_room_for_are_not_all_taken() -> None:
    slots = Slots(PointBudget(4, 2))
    granted, changed = slots.read(0, [64, 128, 192, 256, 320], 1)
    assert (granted, changed) == ((64, 320), set())
    assert slots.keeper.counts(slots.slots) == {"kept": 2, "dropped": 3, "hits": 0, "rows": 0}


def test_others_that_gave_something_up_are_named() -> None:
    slots = Slots(PointBudget(12, 2))
    slots.read(0, [64 * number for number in range(1, 9)], 1)
    slots.read(1, [64 * number for number in range(1, 6)], 2)
    assert (len(slots.positions(0)), len(slots.positions(1))) == (7, 5)
    assert slots.read(1, [384], 3)[1] == {0}


def test_the_first_one_that_is_dropped_is_told_of_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    slots = Slots(PointBudget(2, 2))
    with caplog.at_level(logging.WARNING, logger="strata.checkpoints"):
        slots.read(0, [64, 128], 1)
        slots.read(1, [64, 128], 2)
    assert len(caplog.records) == 1
    assert "there is room for 2" in caplog.text


def test_a_passing_point_takes_no_room_and_goes_with_the_next() -> None:
    slots = Slots(PointBudget(2, 2))
    slots.read(0, [64], 1)
    slot = slots.slots[0]
    slot.state.tokens += [1] * 64
    slot.add_point(is_passing=True)
    assert slots.positions(0) == [64, 128]
    assert slots.read(0, [192], 1)[0] == (192,)
    assert slots.positions(0) == [192]


def test_where_a_read_begins_stays_until_it_has_passed_a_point() -> None:
    """However little room there is: a read that is cancelled goes back there."""
    slots = Slots(PointBudget(2, 2))
    slots.read(0, [64], 1)
    assert slots.keeper.make_room(slots.slots, 0, [128]) == (128,)
    slots.slots[0].abandon_read()
    assert (slots.positions(0), slots.slots[0].position) == ([64], 64)
    slots.slots[0].state.tokens += [1] * 64
    slots.slots[0].add_point()
    assert slots.positions(0) == [128]


def test_a_checkpoint_of_two_slots_is_one() -> None:
    slots = Slots(PointBudget(8, 2))
    slots.read(0, [64, 128], 1)
    slots.slots[0].abandon_read()  # stands at its last point, which is the state to share: nothing is copied
    with pytest.MonkeyPatch.context() as context:
        context.setattr(Slot, "_checkpoint", None)
        slots.slots[1] = slots.slots[0].forked(128, [1] * 200, 2)
    slots.keeper.note_hit(128)
    assert slots.keeper.counts(slots.slots) == {"kept": 2, "dropped": 0, "hits": 1, "rows": 128}


@pytest.mark.parametrize("fails", [False, True])
def test_what_others_gave_up_for_a_read_is_told_even_if_it_fails(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the scheduler would send the next prompt to a place that is gone."""
    model = FakeModel(max_position=4096)
    engine = TokenEngine(model, EngineSettings(), points=PointBudget(12, 2))
    prompt = (1,) * 1000
    for number in range(2):
        engine.run(Open(number, TokenRequest(prompt, SamplingOptions())))
    kept = read_through(engine, Read(0, 704, tuple(range(64, 576, 64)))).points
    assert len(kept) == 9  # and where it ended
    if fails:

        def fail(*given: object) -> None:
            raise RequestError("these rows cannot be read")

        monkeypatch.setattr(model, "begin_read", fail)
    (result,) = engine.run(Read(1, 704, (64, 128, 192, 256, 320, 384)))
    assert (result.error is not None) == fails
    assert {number: len(points) for number, points in result.others.items()} == {0: 7}
    assert set(result.others[0]) < set(kept)


def read_through(engine: TokenEngine, step: Read) -> SlotResult:
    """The result of its last step."""
    while (result := engine.run(step)[-1]).is_under_way:
        pass
    return result


def test_points_that_a_read_has_not_come_to_keep_their_room_until_it_has_taken_them() -> None:
    """One that was granted a lent point gives it back when it ends, if another one passed that wanted it."""
    slots = Slots(PointBudget(8, 3))
    slots.read(0, [], 1)
    assert slots.keeper.begin_read(slots.slots, 0, [64, 128, 192, 256]) == (64, 128, 192, 256)
    assert slots.read(1, [64, 128, 192, 256], 2)[0] == (64, 192, 256)  # it passes meanwhile, as if those were taken
    for _ in range(4):
        slots.slots[0].state.tokens += [1] * 64
        slots.slots[0].add_point()
    slots.keeper.end_read(slots.slots, 0)
    assert [len(slots.positions(number)) for number in (0, 1)] == [3, 3]
    assert slots.read(2, [64, 128], 3)[0] == (64, 128)
    assert slots.keeper.counts(slots.slots)["kept"] == 8


def test_a_read_that_is_given_up_keeps_no_room() -> None:
    slots = Slots(PointBudget(6, 2))
    slots.read(0, [], 1)
    slots.keeper.begin_read(slots.slots, 0, [64, 128, 192])
    slots.keeper.end_read(slots.slots, 0)
    assert slots.read(1, [64, 128, 192], 2)[0] == (64, 128, 192)
