"""Each transform equals its definition in float64, row by row, with ties to the lower id."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.kernels.sampler.filters import keep_min_p, keep_top_k, keep_top_p, scale_by_temperature
from strata.sampling.options import SamplingOptions
from strata.sampling.transforms import History, add_bias, penalize, transform

# Few distinct values, so that ties are common; eighths are exact in every dtype.
ROW = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=24)


def kept(logits: torch.Tensor) -> list[set[int]]:
    return [set(np.flatnonzero(np.isfinite(row))) for row in logits.numpy()]


def descending(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


def probabilities(row: list[float]) -> np.ndarray:
    weights = np.exp(np.array(row, dtype=np.float64) - max(row))
    return weights / weights.sum()


@settings(max_examples=200, deadline=None)
@given(ROW, st.integers(1, 30))
def test_top_k_keeps_the_largest(row: list[float], k: int) -> None:
    assert kept(keep_top_k(torch.tensor([row]), k)) == [set(descending(row)[:k])]


@settings(max_examples=200, deadline=None)
@given(ROW, st.sampled_from([0.001, 0.3, 0.5, 0.77, 0.9, 0.999]))
def test_top_p_keeps_the_fewest_that_reach_p(row: list[float], p: float) -> None:
    total, expected = 0.0, set()
    for token_id in descending(row):
        expected.add(token_id)
        total += float(probabilities(row)[token_id])
        if abs(total - p) < 1e-6:
            return  # nearer than the weights, which are integers, tell
        if total >= p:
            break
    assert kept(keep_top_p(torch.tensor([row]), p)) == [expected]


def test_top_p_counts_only_what_is_still_there() -> None:
    row = torch.tensor([[2.0, 1.0, float("-inf"), 0.0, float("-inf")]])
    assert kept(keep_top_p(row, 0.99)) == [{0, 1, 3}]
    assert kept(keep_top_p(row, 1e-6)) == [{0}]


@settings(max_examples=200, deadline=None)
@given(ROW, st.sampled_from([0.001, 0.1, 0.5, 1.0]))
def test_min_p_keeps_what_reaches_its_share_of_the_likeliest(row: list[float], min_p: float) -> None:
    share = probabilities(row) / probabilities(row).max()
    expected = {i for i in range(len(row)) if share[i] >= min_p * (1 - 1e-6)}
    assert kept(keep_min_p(torch.tensor([row]), math.log(min_p))) == [expected]


def test_penalties_equal_their_definition() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 3, (3, 50)).astype(np.float32)
    in_prompt = random.random((3, 50)) < 0.3
    counts = random.integers(0, 4, (3, 50)) * (random.random((3, 50)) < 0.5)
    options = SamplingOptions(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=-0.4)
    expected = logits.astype(np.float64)
    seen = in_prompt | (counts > 0)
    expected = np.where(seen, np.where(expected > 0, expected / 1.3, expected * 1.3), expected)
    expected = expected + 0.4 * counts - 0.7 * (counts > 0)
    history = History(torch.from_numpy(in_prompt), torch.from_numpy(counts.astype(np.int32)))
    np.testing.assert_allclose(penalize(torch.from_numpy(logits), history, options).numpy(), expected, atol=2e-6)


def test_tokens_of_the_prompt_count_for_the_repetition_penalty_only() -> None:
    logits = torch.tensor([[1.0, 2.0, -3.0]])
    history = History(torch.tensor([[True, False, True]]), torch.zeros(1, 3, dtype=torch.int32))
    same = penalize(logits, history, SamplingOptions(presence_penalty=1, frequency_penalty=1))
    assert torch.equal(same, logits)
    assert penalize(logits, history, SamplingOptions(repetition_penalty=2)).tolist() == [[0.5, 2.0, -6.0]]


def test_bias_and_temperature() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert add_bias(logits, {2: -1.5, 0: 4}).tolist() == [[5.0, 2.0, 1.5], [4.0, 0.0, -1.5]]
    assert logits.tolist()[0] == [1.0, 2.0, 3.0]
    assert scale_by_temperature(logits, 1 / 0.5).tolist() == [[-4.0, -2.0, 0.0], [0.0, 0.0, 0.0]]
    assert scale_by_temperature(torch.tensor([[3e38, 2e38, -3e38]]), 1000.0).tolist()[0][0] == 0.0


def test_order_is_penalties_bias_temperature_top_k_top_p_min_p() -> None:
    """Of 0..5 the bias lifts 0 to the top; top-k keeps 0 5 4; of their mass top-p keeps 0 5; min-p rules 5 out."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    options: dict[str, Any] = {"temperature": 0.5, "logit_bias": {0: 6.0}}
    assert kept(transform(logits, SamplingOptions(**options, top_k=3))) == [{0, 4, 5}]
    assert kept(transform(logits, SamplingOptions(**options, top_k=3, top_p=0.95))) == [{0, 5}]
    assert kept(transform(logits, SamplingOptions(**options, top_k=3, top_p=0.95, min_p=0.2))) == [{0}]
    # Without top-k before it, the same top-p would keep the same; with temperature after it, it would keep more.
    assert kept(keep_top_p(add_bias(logits, {0: 6.0}), 0.95)) == [{0, 4, 5}]
    penalized = SamplingOptions(**options, presence_penalty=6, top_k=1)
    history = History(torch.zeros(1, 6, dtype=torch.bool), torch.tensor([[1, 0, 0, 0, 0, 0]], dtype=torch.int32))
    assert kept(transform(logits, penalized, history)) == [{5}]


def test_penalties_without_a_history_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="history"):
        transform(torch.zeros(1, 3), SamplingOptions(temperature=1, presence_penalty=1))


def test_rows_do_not_look_at_each_other() -> None:
    logits = torch.randn(7, 1000, generator=torch.Generator().manual_seed(3)) * 4
    options = SamplingOptions(temperature=0.8, top_k=300, top_p=0.9, min_p=0.01)
    together = transform(logits, options)
    for order in (torch.arange(7), torch.randperm(7)):
        assert torch.equal(transform(logits[order], options), together[order])
    for row in range(7):
        assert torch.equal(transform(logits[row : row + 1], options)[0], together[row])
