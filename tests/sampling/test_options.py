"""Every option's range is checked, and the sentence names the field, its value and what works."""

import math
from typing import Any

import pytest

from strata.errors import RequestError
from strata.sampling.options import SamplingOptions, new_seed


def test_defaults_are_greedy_and_change_nothing() -> None:
    options = SamplingOptions()
    assert options.greedy
    assert not options.has_penalties
    assert options.logprobs is None


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, 101, 10**400, math.nan, math.inf, "1", True, 1e-9, None]),
        ("top_k", [-2, 1.5, "5", True]),
        ("top_p", [0, -0.1, 1.1, math.nan]),
        ("min_p", [-0.1, 1.1]),
        ("repetition_penalty", [0, -1, math.inf, 101]),
        ("presence_penalty", [-101, math.nan]),
        ("frequency_penalty", [101, "x"]),
        ("logit_bias", [{"5": 1}, {5: 101}, {-1: 1}, {5: math.nan}, {5: None}, [1], None]),
        ("seed", [1.5, 1 << 64, -(1 << 63) - 1, "1"]),
        ("max_tokens", [0, -1, 2.0]),
        ("min_tokens", [-1, 1.5, True, None]),
        ("stop", ["", ("a", ""), (5,), 5, None]),
        ("stop_token_ids", [(-1,), ("a",), 5]),
        ("ignore_eos", [1, "yes"]),
        ("logprobs", [-1, 21, True]),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(RequestError, match=field) as refusal:
            SamplingOptions(**{field: value})
        assert "must be" in str(refusal.value) or "needs" in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 0.001, 1, 2.0, 100]),
        ("top_k", [-1, 0, 1, 10**9]),
        ("top_p", [1e-9, 0.95, 1]),
        ("min_p", [0, 1]),
        ("repetition_penalty", [0.01, 1, 100]),
        ("logit_bias", [{0: -100, 5: 100}]),
        ("seed", [None, 0, -(1 << 63), (1 << 64) - 1]),
        ("logprobs", [None, 0, 20]),
    ],
)
def test_ends_of_the_ranges_work(field: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(SamplingOptions(**{field: value}), field) == value


def test_the_least_tokens_are_at_most_the_most() -> None:
    assert SamplingOptions(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(RequestError, match="min_tokens is 6; it must be from 0 to max_tokens, which is 5"):
        SamplingOptions(min_tokens=6, max_tokens=5)


def test_stops_may_be_one_string_or_any_sequence() -> None:
    assert SamplingOptions(stop="ab").stop == ("ab",)  # type: ignore[arg-type]
    assert SamplingOptions(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_ids_outside_the_vocabulary_are_refused_when_it_is_known() -> None:
    SamplingOptions(logit_bias={9: 1}, stop_token_ids=(9,)).check_vocabulary(10)
    with pytest.raises(RequestError, match="logit_bias names token id 10; this model's ids are 0 to 9"):
        SamplingOptions(logit_bias={10: 1}).check_vocabulary(10)
    with pytest.raises(RequestError, match="stop_token_ids names token id 12"):
        SamplingOptions(stop_token_ids=(12,)).check_vocabulary(10)


def test_a_missing_seed_is_drawn_once() -> None:
    assert SamplingOptions(seed=5).seeded().seed == 5
    seeds = {SamplingOptions(temperature=1).seeded().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= new_seed() < 1 << 63 for _ in range(20))
