"""Rows of experts added up by router weights: checks, and chooses torch's definition or Triton. Knows no expert."""

import torch


def combine_rows(
    rows: torch.Tensor,
    weights: torch.Tensor,
    is_computed: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
    shared_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """rows float32 [n, ranks, hidden], weights float32 [n, ranks] -> [n, hidden]: fma(weight, row) by rank from +0.

    Ranks whose `is_computed` (bool [n, ranks]) is false are left out and their memory is not read. `shared` [n, hidden]
    comes last, as one rank more of weight `shared_weights` [n], or 1. Raises ValueError for other shapes or types.
    """
    count, ranks, hidden = rows.shape
    _check("rows", rows, (count, ranks, hidden), torch.float32)
    _check("weights", weights, (count, ranks), torch.float32)
    _check("is_computed", is_computed, (count, ranks), torch.bool)
    _check("shared", shared, (count, hidden), torch.float32)
    _check("shared_weights", shared_weights, (count,), torch.float32)
    if shared is None and shared_weights is not None:
        raise ValueError("shared_weights are given without the rows `shared` that they weigh")
    if rows.device.type == "cpu":
        from strata.kernels.combine.reference import combine

        everything = torch.ones(count, ranks, dtype=torch.bool) if is_computed is None else is_computed
        return combine(rows, weights, everything, shared, shared_weights)
    from strata.kernels.combine.triton import combine_rows as by_kernels

    return by_kernels(rows, weights, is_computed, shared, shared_weights)


def _check(name: str, tensor: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor is None:
        return
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous {dtype} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}")
