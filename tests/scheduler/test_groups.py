"""Groups of slots: as even as they can be, and nobody moves without need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.scheduler.groups import balanced


def test_new_replies_join_the_smallest_group() -> None:
    assert balanced([4], {}, 2) == {4: 0}
    assert balanced([0, 4], {4: 0}, 2) == {0: 1, 4: 0}
    assert balanced(range(6), {}, 3) == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2}
    assert balanced([3, 1], {}, 1) == {1: 0, 3: 0}
    assert balanced([], {1: 0}, 2) == {}


def test_who_ends_moves_somebody_only_where_two_more_are_left() -> None:
    before = {0: 0, 1: 1, 2: 0, 3: 1}
    assert balanced([0, 2, 3], before, 2) == {0: 0, 2: 0, 3: 1}
    assert balanced([0, 2], before, 2) == {0: 0, 2: 1}
    assert balanced([0, 2], {0: 0, 2: 1}, 2) == {0: 0, 2: 1}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=8), st.integers(1, 5))
def test_groups_are_even_and_few_move(rounds: list[set[int]], groups: int) -> None:
    before: dict[int, int] = {}
    for running in rounds:
        after = balanced(running, before, groups)
        sizes = [list(after.values()).count(group) for group in range(groups)]
        assert after.keys() == running
        assert sum(sizes) == len(running) and max(sizes) - min(sizes) <= 1
        stayed = [slot for slot in running if slot in before]
        left = [[before[slot] for slot in stayed].count(group) for group in range(groups)]
        moved = sum(after[slot] != before[slot] for slot in stayed)
        assert moved <= max(left) - min(left), "so many more than needed to be even"
        if max(left) - min(left) <= 1:
            assert moved == 0
        assert balanced(running, after, groups) == after
        before = after
