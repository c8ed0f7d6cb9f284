"""Drawn routing is what its law says, the same every time, and behaves in a cache as published models do."""

import numpy as np
import pytest

from strata.errors import SettingsError
from strata.experts.replay import Seats, replay_lru, requests_of
from strata.experts.synthetic_trace import UNIFORM, RoutingLaw, RoutingShape, draw_routing

PUBLISHED = RoutingShape(windows=1600, conversations=1, layers=3, experts=512, ranks=10)


def test_rows_are_distinct_experts_and_the_same_every_time() -> None:
    shape = RoutingShape(windows=50, conversations=3, layers=2, experts=12, ranks=5)
    ids = draw_routing(RoutingLaw(topic_tokens=7), shape)
    assert (ids.shape, ids.dtype) == ((50, 3, 2, 5), np.int16)
    assert (ids.min() >= 0) and (ids.max() < 12)
    assert (np.diff(np.sort(ids, axis=-1), axis=-1) > 0).all()
    assert np.array_equal(ids, draw_routing(RoutingLaw(topic_tokens=7), shape))
    assert not np.array_equal(ids, draw_routing(RoutingLaw(topic_tokens=7, seed=1), shape))


def test_all_experts_may_be_taken() -> None:
    ids = draw_routing(RoutingLaw(), RoutingShape(4, 1, 1, 6, 6))
    assert (np.sort(ids, axis=-1) == np.arange(6)).all()


def lru_hit_rate(ids: np.ndarray, seats: int) -> float:
    """Of the later four fifths."""
    layers, experts = ids.shape[1], 512
    room = Seats(np.zeros((layers, experts)), [1] * layers, seats * layers)
    windows = np.arange(len(ids))
    first = len(ids) // 5
    whole = replay_lru(requests_of(ids, windows, experts), room)
    start = replay_lru(requests_of(ids[:first], windows[:first], experts), room)
    return (whole.hits - start.hits) / (whole.requests - start.requests)


def test_the_default_law_gives_the_published_figures() -> None:
    ids = draw_routing(RoutingLaw(), PUBLISHED)[:, 0]
    assert 0.67 <= lru_hit_rate(ids, 64) <= 0.70
    assert 0.81 <= lru_hit_rate(ids, 128) <= 0.83
    unions = [len(np.unique(ids[row : row + 4, layer])) for row in range(0, 1590, 10) for layer in range(3)]
    assert 2.3 <= np.mean(unions) / 10 <= 2.7


def test_uniform_routing_has_nothing_that_a_cache_could_hold() -> None:
    ids = draw_routing(UNIFORM, PUBLISHED)[:, 0]
    assert lru_hit_rate(ids, 128) == pytest.approx(0.25, abs=0.01)
    again = [len(set(ids[row, 0]) & set(ids[row + 1, 0])) for row in range(1500)]
    assert np.mean(again) == pytest.approx(10 * 10 / 512, abs=0.05)


def test_topics_of_two_conversations_change_at_different_times() -> None:
    law = RoutingLaw(zipf=3.0, topic_tokens=40, topic_share=0.99, reuse=0.0)
    ids = draw_routing(law, RoutingShape(40, 8, 1, 64, 1))[:, :, 0, 0]
    favourites = [[np.bincount(part).argmax() for part in np.array_split(column, 8)] for column in ids.T]
    first_change = {next((at for at, each in enumerate(row) if each != row[0]), None) for row in favourites}
    assert len(first_change) > 2


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ({"zipf": -1.0}, "zipf is -1.0"),
        ({"topic_tokens": 0}, "topic_tokens is 0"),
        ({"reuse": 1.0}, "reuse is 1.0"),
        ({"topic_experts": float("nan")}, "topic_experts is nan"),
    ],
)
def test_values_that_make_no_law_are_refused(law: dict[str, float], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        RoutingLaw(**law)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 1, 1, 4, 2), "windows is 0"),
        ((1, 1, 1, 4, 5), "ranks is 5; 1 to 4 works"),
        ((1, 1, 1, 1 << 16, 5), "experts is 65536"),
        ((1 << 20, 1024, 1, 4, 2), "at most 1,073,741,824 are drawn"),
    ],
)
def test_shapes_that_cannot_be_drawn_are_refused(sizes: tuple[int, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        RoutingShape(*sizes)
