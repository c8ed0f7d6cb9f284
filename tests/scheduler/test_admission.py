"""Who gets a slot next: the first who came, or who may pass the prompt that is read."""

from strata.engine.steps import Open, ParkingSpace
from strata.scheduler.admission import Admission
from strata.scheduler.parked import ParkedBooks
from strata.scheduler.read_modes import ReadMode, ReadRule
from strata.scheduler.reads import PromptRead
from strata.scheduler.request import Run
from strata.scheduler.slots import SlotBook
from tests.scheduler.simulated import request

RULE = ReadRule()


class Waiting:
    """A preparation that is done when somebody says so."""

    is_done = False

    def result(self) -> str:
        return "prepared"


def made(slots: int) -> Admission:
    books = [SlotBook(index) for index in range(slots)]
    return Admission(books, ParkedBooks(ParkingSpace(), slots, keep_turns=True), keep_turns=True)


def run(number: int, rows: int, first: int = 0) -> Run:
    return Run(number, request(tuple(range(first, first + rows))), float(number))


def opened(admission: Admission, number: int, rows: int, first: int = 0) -> tuple[Open, PromptRead]:
    """A request in a slot, of whose prompt nothing is read."""
    opening = admission.open(run(number, rows, first), None, 0.0, reads_as_windows=True)
    return opening, PromptRead(admission.slots[opening.slot])


def test_slots_are_given_to_who_is_ready_in_the_order_of_arrival() -> None:
    admission = made(1)
    first, second, third = run(1, 5), run(2, 5), run(3, 5)
    first.preparation = preparation = Waiting()
    for each in (first, second, third):
        admission.add(each)
    assert admission.withdraw(2) is second and admission.withdraw(2) is None
    assert admission.take_next(None, RULE) is third
    assert admission.take_next(None, RULE) is None
    preparation.is_done = True
    assert admission.take_next(None, RULE) is first
    assert len(admission) == 0


def test_nobody_gets_a_slot_that_is_in_use() -> None:
    admission = made(1)
    _, read = opened(admission, 1, 1000)
    admission.add(run(2, 5))
    assert admission.take_next(read, RULE) is None
    admission.release(admission.slots[0])
    assert admission.take_next(None, RULE) is not None


def test_the_first_who_is_short_enough_passes() -> None:
    admission = made(3)
    _, read = opened(admission, 1, 1000)
    for number, rows in ((2, 600), (3, 499), (4, 5)):
        admission.add(run(number, rows, 10_000 * number))
    assert admission.take_next(read, ReadRule(ReadMode.WHOLE, is_piped=True)) is None
    passing = admission.take_next(read, RULE)
    assert passing is not None and passing.request_id == 3
    read.times_given_way = 2
    assert admission.take_next(read, RULE) is None


def test_rows_that_a_slot_has_by_now_do_not_keep_a_prompt_from_passing() -> None:
    """What a long read has come to counts as soon as the engine tells of it."""
    admission = made(2)
    opening, read = opened(admission, 1, 3000)
    shares_most = Run(2, request((*range(1024), *range(50_000, 50_600))), 2.0)
    read.request.read_rows = 1100
    admission.add(shares_most)
    assert admission.take_next(read, RULE) is None
    admission.note_points(opening.slot, (1024,))
    assert admission.take_next(read, RULE) is shares_most
    assert admission.open(shares_most, "prepared", 5.0, reads_as_windows=True) == Open(
        1, shares_most.request, opening.slot, 1024, "prepared"
    )
    assert (shares_most.cached, shares_most.opened) == (1024, 5.0)
