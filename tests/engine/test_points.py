"""Which points are given up: within the budget, the last and the root never first, and nobody at another's cost."""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from strata.engine.points import MOST_GUARANTEED, Kept, PointBudget, WantedPoint, points_given_up

SLOTS = 3
Asked = tuple[int, int]  # a slot, how many points it takes


class Book:
    """Points of some slots, each request of which takes some more."""

    def __init__(self, budget: PointBudget) -> None:
        self.budget = budget
        self.held: dict[int, list[Kept]] = {}
        self.uses = 0

    def read(self, slot: int, gaps: Sequence[int]) -> list[Kept]:
        """A request takes points so far behind one another; returns what others lost by that."""
        self.uses += 1
        points = self.held.setdefault(slot, [])
        before = {each: list(held) for each, held in self.held.items()}
        for gap in gaps:
            points.append(WantedPoint((points[-1].position if points else 0) + 64 * gap, self.uses))
        for each, positions in points_given_up(self.held, self.budget).items():
            self.held[each] = [point for point in self.held[each] if point.position not in positions]
        return [
            point for each, held in before.items() if each != slot for point in held if point not in self.held[each]
        ]


requests = st.lists(
    st.tuples(st.integers(0, SLOTS - 1), st.lists(st.integers(1, 300), min_size=1, max_size=6)), max_size=25
)


@settings(max_examples=150, deadline=None)
@given(requests, st.integers(SLOTS, 30))
def test_the_budget_holds_and_roots_and_last_points_stay(asked: list[tuple[int, list[int]]], room: int) -> None:
    book = Book(PointBudget(room, SLOTS))
    roots: dict[int, Kept] = {}
    for slot, gaps in asked:
        book.read(slot, gaps)
        points = book.held[slot]
        assert sum(map(len, book.held.values())) <= room
        assert points[-1].use == book.uses, "the last point of a prompt is always there"
        roots.setdefault(slot, points[0])
        if book.budget.guaranteed > 1:
            assert all(book.held[each][0] == root for each, root in roots.items())


@settings(max_examples=150, deadline=None)
@given(requests, st.lists(st.integers(1, 300), min_size=1, max_size=MOST_GUARANTEED))
def test_a_short_request_costs_no_other_conversation_a_point(
    asked: list[tuple[int, list[int]]], gaps: list[int]
) -> None:
    """However much others have read before, in a slot that is given to it."""
    book = Book(PointBudget(SLOTS * MOST_GUARANTEED + 9, SLOTS))
    for slot, wanted in asked:
        book.read(slot, wanted)
    book.held[0] = []
    assert book.read(0, gaps) == []


@settings(max_examples=150, deadline=None)
@given(requests, st.integers(SLOTS, 30))
def test_nobody_loses_points_that_are_guaranteed_to_them(asked: list[tuple[int, list[int]]], room: int) -> None:
    book = Book(PointBudget(room, SLOTS))
    for slot, gaps in asked:
        sizes = {each: len(points) for each, points in book.held.items()}
        book.read(slot, gaps)
        for each, size in sizes.items():
            assert len(book.held[each]) >= min(size, book.budget.guaranteed)


def test_one_conversation_may_have_what_the_others_are_not_guaranteed() -> None:
    book = Book(PointBudget(20, SLOTS))
    book.read(0, [256] * 40)
    assert len(book.held[0]) == 20 - 2 * MOST_GUARANTEED
    book.read(1, [256] * 40)
    assert [len(points) for points in book.held.values()] == [8, 8]


def test_of_one_conversation_the_longest_unused_goes_then_the_one_that_leaves_the_smallest_gap() -> None:
    old = [WantedPoint(position, 1) for position in (256, 1024, 16384, 16448)]
    new = [WantedPoint(32768, 2), WantedPoint(40000, 3)]
    given_up = [points_given_up({0: [*old, *new]}, PointBudget(room, 1)).get(0, set()) for room in (6, 5, 4, 3, 2, 1)]
    assert given_up[:3] == [set(), {16384}, {16384, 1024}]
    assert given_up[3:] == [{16384, 1024, 16448}, {16384, 1024, 16448, 32768}, {256, 1024, 16384, 16448, 32768}]


@pytest.mark.parametrize(("points", "slots", "guaranteed"), [(3, 3, 1), (8, 3, 2), (36, 4, 4), (2, 4, 1)])
def test_what_is_guaranteed_is_an_even_share_of_little(points: int, slots: int, guaranteed: int) -> None:
    assert PointBudget(points, slots).guaranteed == guaranteed


def test_more_slots_than_there_is_room_for_keep_their_last_points() -> None:
    held: dict[int, list[Kept]] = {slot: [WantedPoint(64, 1), WantedPoint(128, 1)] for slot in range(4)}
    assert points_given_up(held, PointBudget(2, 2)) == {slot: {64} for slot in range(4)}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12), st.integers(SLOTS, 40))
def test_parked_conversations_have_what_slots_are_not_guaranteed(sizes: list[tuple[int, bool]], room: int) -> None:
    held: dict[int, list[Kept]] = {
        number: [WantedPoint(64 * (1 + place), number) for place in range(size)]
        for number, (size, _) in enumerate(sizes)
    }
    parked = {number for number, (_, is_parked) in enumerate(sizes) if is_parked}
    slots = held.keys() - parked
    while len(slots) > SLOTS:
        held.pop(slots.pop())
    budget = PointBudget(room, SLOTS)
    given_up = points_given_up(held, budget, parked)
    left = {number: len(points) - len(given_up.get(number, ())) for number, points in held.items()}
    assert sum(max(left[each], budget.guaranteed) for each in slots) + sum(
        left[each] for each in parked
    ) <= room - budget.guaranteed * (SLOTS - len(slots))
    assert all(left[each] >= min(len(held[each]), budget.guaranteed) for each in slots)
    if sum(map(len, held.values())) + budget.guaranteed * SLOTS <= room:
        assert not given_up
