"""The cache of experts: who has a seat at the start, which swaps a rule makes, what may not move."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import SettingsError
from strata.experts.cache import CacheView, ExpertCache, ExpertId, Swap, SwapRule, choose_swaps, place_hottest

EVERY_WINDOW = SwapRule(every=1, most_swaps=4, margin=0.5, decay=1.0, again=1.0)


@st.composite
def views(draw: st.DrawFn) -> CacheView:
    layers, experts = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    size = layers * experts

    def array(values: st.SearchStrategy[object], kind: type) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=size, max_size=size)), kind).reshape(layers, experts)

    return CacheView(
        counts=array(st.integers(0, 5), np.float32),
        is_resident=array(st.booleans(), bool),
        is_landing=array(st.booleans(), bool),
        blob_bytes=np.array(draw(st.lists(st.sampled_from([10, 20]), min_size=layers, max_size=layers))),
    )


rules = st.builds(
    SwapRule,
    every=st.just(1),
    most_swaps=st.integers(0, 6),
    margin=st.sampled_from([0.0, 1.0, 1.5]),
    decay=st.just(1.0),
)


@given(views(), rules)
def test_a_swap_gains_more_than_the_margin_and_moves_nothing_that_is_on_its_way(
    view: CacheView, rule: SwapRule
) -> None:
    swaps = choose_swaps(view, rule)
    assert len(swaps) <= rule.most_swaps
    moved = [expert for swap in swaps for expert in (swap.arrival, swap.victim)]
    assert len(moved) == len(set(moved))
    gains = []
    for swap in swaps:
        assert view.is_resident[swap.victim]
        assert not view.is_resident[swap.arrival]
        assert not view.is_landing[swap.victim]
        assert not view.is_landing[swap.arrival]
        assert view.blob_bytes[swap.arrival.layer] == view.blob_bytes[swap.victim.layer]
        gains.append(view.counts[swap.arrival] - view.counts[swap.victim])
        assert gains[-1] > rule.margin
    assert gains == sorted(gains, reverse=True)


@given(views(), rules)
def test_no_pair_that_leads_is_left_while_a_swap_is_allowed(view: CacheView, rule: SwapRule) -> None:
    swaps = choose_swaps(view, rule)
    is_resident = view.is_resident.copy()
    for swap in swaps:
        is_resident[swap.arrival], is_resident[swap.victim] = True, False
    moved = {expert for swap in swaps for expert in (swap.arrival, swap.victim)}
    layers, experts = view.counts.shape
    everyone = [ExpertId(*each) for each in product(range(layers), range(experts)) if not view.is_landing[each]]
    left = [
        (a, v)
        for a, v in product(everyone, everyone)
        if not is_resident[a] and is_resident[v] and moved.isdisjoint((a, v))
        if view.blob_bytes[a.layer] == view.blob_bytes[v.layer] and view.counts[a] > view.counts[v] + rule.margin
    ]
    assert len(swaps) == rule.most_swaps or not left


def test_the_best_misses_replace_the_worst_residents() -> None:
    view = CacheView(
        counts=np.array([[5, 0, 3, 1], [4, 2, 0, 9]], np.float32),
        is_resident=np.array([[0, 1, 0, 1], [0, 1, 1, 0]], bool),
        is_landing=np.zeros((2, 4), bool),
        blob_bytes=np.array([7, 7]),
    )
    assert choose_swaps(view, SwapRule(1, 2, 0.5, 1.0)) == [
        Swap(ExpertId(1, 3), ExpertId(0, 1)),
        Swap(ExpertId(0, 0), ExpertId(1, 2)),
    ]


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=2, max_size=4),
    st.lists(st.sampled_from([3, 5, 8]), min_size=4, max_size=4),
    st.integers(0, 100),
)
def test_the_hottest_are_placed_first_and_all_that_fit(heat: list[list[int]], sizes: list[int], room: int) -> None:
    found = place_hottest(np.array(heat), sizes[: len(heat)], room)
    free = room
    order = sorted(product(range(len(heat)), range(3)), key=lambda each: (-heat[each[0]][each[1]], each[1], each[0]))
    for layer, expert in order:  # the definition: hottest first, whoever still fits
        fits = sizes[layer] <= free
        assert found[layer, expert] == fits
        free -= sizes[layer] * fits


def test_without_a_profile_seats_are_spread_over_the_layers() -> None:
    assert place_hottest(np.zeros((3, 8)), [10, 10, 10], 70).sum(axis=1).tolist() == [3, 2, 2]


def test_room_for_all_makes_everyone_resident_and_nothing_is_swapped() -> None:
    cache = ExpertCache(place_hottest(np.zeros((2, 4)), [10, 20], 120), [10, 20], EVERY_WINDOW)
    assert cache.is_resident.all()
    assert cache.note_window(np.array([0, 1]), np.array([3, 2])) == []


def test_a_victim_is_a_miss_at_once_and_an_arrival_a_hit_when_it_has_landed() -> None:
    cache = ExpertCache(np.array([[True, False]]), [10], EVERY_WINDOW)
    (swap,) = cache.note_window(np.array([0]), np.array([1]))
    assert swap == Swap(ExpertId(0, 1), ExpertId(0, 0))
    assert cache.is_resident.tolist() == [[False, False]]
    assert cache.note_window(np.array([0]), np.array([1])) == []  # it is on its way
    cache.land(swap.arrival)
    assert cache.is_resident.tolist() == [[False, True]]
    with pytest.raises(ValueError, match="expert 1 of layer 0 is not on its way"):
        cache.land(swap.arrival)


@settings(max_examples=50)
@given(st.lists(st.sets(st.integers(0, 11), min_size=1), max_size=30), st.integers(1, 8), st.integers(0, 3), rules)
def test_every_seat_stays_a_seat_and_a_round_keeps_its_limit(
    windows: list[set[int]], seats: int, landing: int, rule: SwapRule
) -> None:
    cache = ExpertCache(place_hottest(np.zeros((3, 4)), [10] * 3, seats * 10), [10] * 3, rule)
    under_way: list[ExpertId] = []
    for window in windows:
        swaps = cache.note_window(*np.divmod(np.array(sorted(window)), 4))
        assert len(swaps) <= rule.most_swaps
        under_way += [swap.arrival for swap in swaps]
        assert cache.is_resident.sum() + len(under_way) == seats
        while len(under_way) > landing:
            cache.land(under_way.pop(0))


def test_counts_fade_so_that_a_new_favourite_wins() -> None:
    cache = ExpertCache(
        np.array([[True, False]]), [10], SwapRule(every=2, most_swaps=1, margin=0.5, decay=0.5, again=1.0)
    )
    layer, first, second = np.array([0]), np.array([0]), np.array([1])
    for _ in range(10):
        assert cache.note_window(layer, first) == []
    rounds = [bool(cache.note_window(layer, second)) for _ in range(4)]
    assert rounds == [False, False, False, True]  # 2 against 1.9, then 3 against 1


def test_an_expert_that_the_last_window_asked_for_too_counts_less() -> None:
    layer, first, second = np.array([0]), np.array([0]), np.array([1])
    cache = ExpertCache(np.ones((1, 2), bool), [10], SwapRule(every=1, decay=1.0, again=0.25))
    for asked in (first, first, first, second, first):
        cache.note_window(layer, asked)
    assert cache.view.counts.tolist() == [[1 + 0.25 + 0.25 + 1, 1]]


def test_counts_of_a_round_at_once_are_those_of_its_windows() -> None:
    rng, rule = np.random.default_rng(0), SwapRule(every=3, most_swaps=2, margin=0.5, decay=0.9, again=0.5)
    is_placed = np.arange(10).reshape(2, 5) % 2 == 0
    one_by_one, at_once = (ExpertCache(is_placed, [10, 10], rule) for _ in range(2))
    for _ in range(20):
        asked = rng.random((3, 2, 5)) < 0.4
        swaps = [swap for window in asked for swap in one_by_one.note_window(*np.nonzero(window))]
        assert at_once.note_counts(asked.sum(axis=0), most_swaps=2) == swaps
        assert np.array_equal(one_by_one.view.counts, at_once.view.counts)
        for swap in swaps:
            one_by_one.land(swap.arrival)
            at_once.land(swap.arrival)


def test_a_round_makes_no_more_swaps_than_there_is_room_for() -> None:
    cache = ExpertCache(np.array([[True, True, False, False]]), [10], EVERY_WINDOW)
    assert len(cache.note_counts(np.array([[0, 0, 2, 2]]), most_swaps=1)) == 1
    assert cache.note_counts(np.array([[0, 0, 2, 2]]), most_swaps=0) == []


def test_a_swap_that_is_called_off_leaves_the_seat_to_its_victim() -> None:
    cache = ExpertCache(np.array([[True, False]]), [10], EVERY_WINDOW)
    (swap,) = cache.note_window(np.array([0]), np.array([1]))
    cache.call_off(swap)
    assert cache.is_resident.tolist() == [[True, False]]
    assert cache.note_window(np.array([0]), np.array([1])) == [swap]
    cache.land(swap.arrival)
    with pytest.raises(ValueError, match="is not on its way"):
        cache.call_off(swap)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"every": 0}, "every is 0; 1 to"),
        ({"most_swaps": -1}, "most_swaps is -1"),
        ({"margin": float("nan")}, "margin is nan"),
        ({"decay": 1.5}, "decay is 1.5; 0 to 1 works"),
        ({"again": -0.1}, "again is -0.1; 0 to 1 works"),
    ],
)
def test_values_that_make_no_rule_are_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        SwapRule(**values)  # type: ignore[arg-type]
