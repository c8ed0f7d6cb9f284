"""The chunked gated delta rule equals a plain recurrence, values and gradients. Knows the torch twins only.

The Triton kernels are held against these twins on a GPU by `python -m training.bench`.
"""

import pytest
import torch
from torch import Tensor

from training.delta_rule import CHUNK, gated_delta_rule, unit_lower_inverse

HEADS, WIDTH = 2, 64
OFFSETS = torch.tensor([0, 1, 3, 3], dtype=torch.int32)  # sequences of one chunk, of two, and an empty one
ROWS = 3 * CHUNK


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """query, key, value, log decay, beta; query and key of unit length."""
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key = (torch.nn.functional.normalize(normal(ROWS, HEADS, WIDTH), dim=-1) for _ in range(2))
    parts = [query, key, normal(ROWS, HEADS, WIDTH), -0.3 * normal(ROWS, HEADS).abs(), normal(ROWS, HEADS).sigmoid()]
    return [part.to(dtype).requires_grad_() for part in parts]


def plain_recurrence(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Row by row: decay the state, write what the key does not yet give, read with the query."""
    outputs = []
    for first, last in zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True):
        state = torch.zeros(HEADS, WIDTH, WIDTH, dtype=query.dtype)
        for row in range(first * CHUNK, last * CHUNK):
            state = state * log_decay[row].exp()[:, None, None]
            known = torch.einsum("hk,hkv->hv", key[row], state)
            written = beta[row].unsqueeze(-1) * (value[row] - known)
            state = state + key[row].unsqueeze(-1) * written.unsqueeze(1)
            outputs.append(torch.einsum("hk,hkv->hv", query[row] * WIDTH**-0.5, state))
    return torch.stack(outputs)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_chunks_equal_a_plain_recurrence_in_float64(dtype: torch.dtype, limit: float) -> None:
    plain, chunked = inputs(torch.float64), inputs(dtype)
    expected, found = plain_recurrence(*plain), gated_delta_rule(*chunked, OFFSETS)
    assert (found - expected).abs().max() <= limit * expected.abs().max()
    pull = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected.backward(pull)
    found.backward(pull.to(dtype))
    for name, a, b in zip(("query", "key", "value", "log decay", "beta"), plain, chunked, strict=True):
        assert a.grad is not None and b.grad is not None
        assert (b.grad - a.grad).abs().max() <= limit * a.grad.abs().max(), name


def test_inverse_of_a_unit_lower_triangle() -> None:
    lower = torch.randn(5, CHUNK, CHUNK, dtype=torch.float64).tril(-1) * 0.1
    identity = torch.eye(CHUNK, dtype=torch.float64)
    assert (unit_lower_inverse(lower) @ (identity + lower) - identity).abs().max() <= 1e-12
