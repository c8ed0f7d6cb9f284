"""Log-probabilities equal log-softmax, row by row, with ties to the lower id."""

import numpy as np
import torch

from strata.sampling.logprobs import token_logprob


def test_values_equal_log_softmax() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (4, 500)).astype(np.float32)
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    for row in range(4):
        value, top = token_logprob(torch.from_numpy(logits[row]), 17, 20)
        assert abs(value - expected[row, 17]) < 1e-9
        order = np.argsort(-wide[row], kind="stable")[:20]
        assert [entry.token_id for entry in top] == order.tolist()
        np.testing.assert_allclose([entry.logprob for entry in top], expected[row][order], atol=1e-9)


def test_of_equal_logits_the_lower_id_comes_first() -> None:
    row = torch.tensor([0.0, 3.0, 1.0, 3.0, 1.0, 1.0, 3.0])
    _, top = token_logprob(row, 0, 5)
    assert [entry.token_id for entry in top] == [1, 3, 6, 2, 4]
    _, everything = token_logprob(row, 0, 20)
    assert [entry.token_id for entry in everything] == [1, 3, 6, 2, 4, 5, 0]


def test_ruled_out_tokens_have_no_probability_and_large_logits_do_not_overflow() -> None:
    value, top = token_logprob(torch.tensor([1e38, float("-inf"), 1e38]), 1, 1)
    assert value == float("-inf")
    assert abs(top[0].logprob - np.log(0.5)) < 1e-9
