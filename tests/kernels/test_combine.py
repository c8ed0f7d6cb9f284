"""Combining rows off the GPU: the order of the additions, masks over stale memory, and what is refused."""

import numpy as np
import pytest
import torch

from strata.kernels.combine import combine_rows
from strata.kernels.expert_rows.reference import fma
from tests.kernels.random_matrices import random_rows


def some(rows: int, ranks: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.from_numpy(np.random.default_rng(rows).random((rows, ranks), dtype=np.float32))
    return random_rows(1, rows * ranks, hidden).reshape(rows, ranks, hidden), weights


def test_ranks_are_added_in_order_and_the_shared_row_last() -> None:
    rows, weights = some(2, 3, 40)
    shared, gates = random_rows(2, 2, 40), torch.tensor([0.3, 0.9])
    for n in range(2):
        total = torch.zeros(40)
        for rank in range(3):
            total = fma(weights[n, rank].expand(40), rows[n, rank], total)
        assert torch.equal(combine_rows(rows, weights)[n], total)
        assert torch.equal(combine_rows(rows, weights, None, shared)[n], total + shared[n])
        gated = combine_rows(rows, weights, None, shared, gates)
        assert torch.equal(gated[n], fma(gates[n].expand(40), shared[n], total))


def test_a_gate_of_one_is_no_gate() -> None:
    rows, weights = some(3, 2, 33)
    shared = random_rows(4, 3, 33)
    gated = combine_rows(rows, weights, None, shared, torch.ones(3))
    assert torch.equal(gated, combine_rows(rows, weights, None, shared))


def test_stale_memory_does_not_show() -> None:
    rows, weights = some(2, 3, 16)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    stale = rows.masked_fill(~mask[..., None], float("nan"))
    assert torch.equal(combine_rows(stale, weights, mask), combine_rows(rows, weights * mask))
    assert torch.equal(combine_rows(stale, weights, mask)[1], torch.zeros(16))


def test_other_shapes_and_types_are_refused() -> None:
    rows, weights = some(2, 3, 16)
    with pytest.raises(ValueError, match=r"weights must be .* \[2, 3\], not .* \[2, 2\]"):
        combine_rows(rows, weights[:, :2].contiguous())
    with pytest.raises(ValueError, match=r"is_computed must be contiguous torch.bool"):
        combine_rows(rows, weights, torch.ones(2, 3))
    with pytest.raises(ValueError, match="without the rows"):
        combine_rows(rows, weights, shared_weights=torch.ones(2))
    with pytest.raises(ValueError, match="rows must be contiguous"):
        combine_rows(rows.transpose(0, 1), weights)
