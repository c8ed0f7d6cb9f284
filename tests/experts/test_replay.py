"""Replays against slow definitions: the best policy by exhaustion, LRU by an ordered dictionary, every static set."""

from collections import OrderedDict
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.experts.cache import SwapRule, place_hottest
from strata.experts.replay import (
    Requests,
    Seats,
    compare_policies,
    replay_adaptive,
    replay_belady,
    replay_best_set,
    replay_lru,
    replay_static,
    requests_of,
)

LAYERS, EXPERTS = 2, 3  # six experts in all: every policy can be tried
Windows = list[set[int]]  # of each window the experts asked for, as layer * EXPERTS + expert

windows_of_six = st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=7)
heats = st.lists(st.integers(0, 3), min_size=6, max_size=6).map(lambda values: np.array(values).reshape(2, 3))
rules = st.builds(
    SwapRule,
    every=st.integers(1, 2),
    most_swaps=st.integers(0, 3),
    margin=st.sampled_from([0.0, 0.5]),
    decay=st.sampled_from([0.0, 0.5, 1.0]),
)


def requests(windows: Windows) -> Requests:
    bounds = np.cumsum([0, *map(len, windows)])
    return Requests(np.array([key for window in windows for key in sorted(window)]), bounds, LAYERS, EXPERTS)


def seats(count: int, heat: np.ndarray | None = None) -> Seats:
    return Seats(np.zeros((LAYERS, EXPERTS)) if heat is None else heat, [10, 10], count * 10)


def most_hits(windows: Windows, count: int) -> int:
    """By trying every content that a cache may have, which takes in nobody who was not asked for."""
    best = {frozenset(content): 0 for content in combinations(range(6), count)}
    for window in windows:
        following: dict[frozenset[int], int] = {}
        for content, hits in best.items():
            found = hits + len(content & window)
            for chosen in combinations(content | window, count):
                key = frozenset(chosen)
                following[key] = max(following.get(key, 0), found)
        best = following
    return max(best.values())


@settings(max_examples=60, deadline=None)
@given(windows_of_six, st.integers(0, 6))
def test_belady_is_the_best_of_all_policies_on_demand(windows: Windows, count: int) -> None:
    assert replay_belady(requests(windows), seats(count)).hits == most_hits(windows, count)


def lru_by_dictionary(windows: Windows, content: list[int], count: int, landing: int) -> tuple[int, int]:
    """`content`: the first residents, the one that goes first in front. Values are the windows that hit them first."""
    held = OrderedDict.fromkeys(content, 0)
    hits = copies = 0
    for number, window in enumerate(windows):
        hits += sum(held.get(key, number + 1) <= number for key in window)
        before = set(held)
        for key in sorted(window):
            held.setdefault(key, number + 1 + landing)
            held.move_to_end(key)
        while len(held) > count:
            held.popitem(last=False)
        copies += len(set(held) - before)
    return hits, copies


@given(windows_of_six, st.integers(0, 6), heats, st.integers(0, 2))
def test_lru_is_what_an_ordered_dictionary_gives(windows: Windows, count: int, heat: np.ndarray, landing: int) -> None:
    coldest_first = sorted(range(6), key=lambda key: (heat.flat[key], -(key % EXPERTS), -(key // EXPERTS)))
    found = replay_lru(requests(windows), seats(count, heat), landing)
    assert (found.hits, found.copies) == lru_by_dictionary(windows, coldest_first[6 - count :], count, landing)


@given(windows_of_six, st.integers(0, 6), heats)
def test_no_other_static_set_beats_the_best_one(windows: Windows, count: int, heat: np.ndarray) -> None:
    hits = [sum(len(window & set(chosen)) for window in windows) for chosen in combinations(range(6), count)]
    assert replay_best_set(requests(windows), seats(count)).hits == max(hits)
    learned = replay_static(requests(windows), seats(count, heat))
    placed = set(np.flatnonzero(place_hottest(heat, [10, 10], count * 10)))
    assert (learned.hits, learned.copies) == (sum(len(window & placed) for window in windows), 0)


@given(windows_of_six, st.integers(0, 6), heats, rules)
def test_belady_is_never_below_the_others(windows: Windows, count: int, heat: np.ndarray, rule: SwapRule) -> None:
    """Adaptive too where a miss is decided about when it is asked for: every window, no count kept, copied at once."""
    now = SwapRule(every=1, most_swaps=rule.most_swaps, margin=rule.margin, decay=0.0)
    asked, room = requests(windows), seats(count, heat)
    belady = replay_belady(asked, room)
    others = (
        replay_lru(asked, room),
        replay_static(asked, room),
        replay_best_set(asked, room),
        replay_adaptive(asked, room, now, landing_windows=0),
    )
    for other in others:
        assert belady.hits >= other.hits
        assert belady.requests == other.requests == sum(map(len, windows))


@given(windows_of_six, heats)
def test_more_seats_never_cost_hits(windows: Windows, heat: np.ndarray) -> None:
    for policy in (replay_belady, replay_lru, replay_best_set, replay_static):
        hits = [policy(requests(windows), seats(count, heat)).hits for count in range(7)]
        assert hits == sorted(hits)
        assert hits[-1] == sum(map(len, windows))


@given(windows_of_six, st.integers(0, 6), heats, rules, st.integers(0, 2))
def test_adaptive_copies_keep_the_limit_of_their_rounds(
    windows: Windows, count: int, heat: np.ndarray, rule: SwapRule, landing: int
) -> None:
    found = replay_adaptive(requests(windows), seats(count, heat), rule, landing)
    assert found.copies <= rule.most_swaps * (len(windows) // rule.every)
    assert found.copied_bytes == 10 * found.copies
    if rule.most_swaps == 0:
        assert found == replay_static(requests(windows), seats(count, heat))


def test_an_adaptive_copy_is_hit_after_the_windows_that_it_takes() -> None:
    windows: Windows = [{1}] * 5
    rule = SwapRule(every=1, most_swaps=1, margin=0.5, decay=1.0)
    hits = [replay_adaptive(requests(windows), seats(1), rule, landing).hits for landing in range(4)]
    assert hits == [4, 3, 2, 1]


def test_blobs_of_different_sizes_never_trade_seats() -> None:
    asked = requests([{3, 4}] * 4)  # of layer 1 only
    room = Seats(np.array([[9, 9, 0], [1, 0, 0]]), [30, 10], 70)  # two seats of layer 0, one of layer 1
    assert replay_belady(asked, room).hits == 4
    assert replay_lru(asked, room).copied_bytes == 10 * replay_lru(asked, room).copies
    adaptive = replay_adaptive(asked, room, SwapRule(every=1, most_swaps=9, margin=0.0, decay=1.0), 0)
    assert (adaptive.hits, adaptive.copies) == (4, 0)


def test_rows_of_one_window_ask_once_for_an_expert() -> None:
    ids = np.array([[[0, 2], [1, 0]], [[2, 1], [1, 2]], [[0, 1], [0, 1]]], np.int16)  # [rows, layers, ranks]
    found = requests_of(ids, np.array([4, 4, 7]), EXPERTS)
    assert [keys.tolist() for keys in found] == [[0, 1, 2, 3, 4, 5], [0, 1, 3, 4]]
    assert found.counts().tolist() == [[2, 2, 1], [2, 2, 1]]
    assert [keys.tolist() for keys in found.between(1, 2)] == [[0, 1, 3, 4]]
    assert [keys.tolist() for keys in found.only(np.array([False, True]))] == [[3, 4, 5], [3, 4]]


def test_nothing_asked_for_is_no_hit() -> None:
    nothing = requests_of(np.zeros((0, LAYERS, 2), np.int16), np.zeros(0, int), EXPERTS)
    assert replay_belady(nothing, seats(2)).hit_rate == replay_lru(nothing, seats(2)).hit_rate == 0.0


@pytest.mark.parametrize(("percent", "count"), [(1, 0), (17, 1), (50, 3), (100, 6)])
def test_a_comparison_gives_every_policy_the_same_room(percent: float, count: int) -> None:
    asked = requests([{0, 4}, {1, 4}, {0, 5}])
    found = compare_policies(asked, asked.counts(), [10, 10], percent, SwapRule(), 1)
    assert found.seats == count
    room = seats(count, asked.counts())
    assert found.lru == replay_lru(asked, room, 1)
    assert found.belady == replay_belady(asked, room)
    assert found.learned_set == replay_static(asked, room)
    assert found.adaptive == replay_adaptive(asked, room, SwapRule(), 1)
