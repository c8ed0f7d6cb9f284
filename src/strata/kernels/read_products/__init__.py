"""Packed matrices times the rows of a read, on the matrix units: checks, and the choice of road. Knows no arithmetic.

A read's arithmetic is its own: rows are bf16, weights are rounded to bf16, products are added in float32. A row's bits
depend on that row alone, not on the rows beside it.
"""

from collections.abc import Sequence

import torch

from strata.kernels.roads import takes_reference
from strata.quant.packed import PackedMatrix

MOST_ELEMENTS = 1 << 31  # the kernels count elements in 32 bits


def read_products(matrices: Sequence[PackedMatrix], x: torch.Tensor, out: torch.Tensor) -> None:
    """Multiply rows by matrices under one another: x bf16 [rows, columns] -> out [rows, sum of outputs].

    x is contiguous; out is bf16, rounded once, or float32, of any row stride. Values of F32 and F16 codes count in full
    (as bf16 parts whose sum they are), others as bf16. One launch a matrix. Raises ValueError for other shapes, types.
    """
    if not matrices:
        raise ValueError("no matrix to multiply by")
    rows, outputs = x.shape[0], sum(matrix.layout.rows for matrix in matrices)
    if x.dtype != torch.bfloat16 or x.dim() != 2 or not x.is_contiguous() or x.numel() >= MOST_ELEMENTS:
        raise ValueError(f"x must be contiguous bf16 [rows, columns], not {x.dtype} {list(x.shape)}")
    if out.dtype not in (torch.bfloat16, torch.float32) or out.shape != (rows, outputs) or out.stride(1) != 1:
        raise ValueError(f"out must be bf16 or float32 [{rows}, {outputs}], not {out.dtype} {list(out.shape)}")
    for matrix in matrices:
        layout = matrix.layout
        if layout.columns != x.shape[1]:
            raise ValueError(
                f"rows of {x.shape[1]} columns are no input for a matrix of {layout.rows} x {layout.columns}"
            )
        if layout.tiles * 16 * layout.columns >= MOST_ELEMENTS:
            raise ValueError(f"a matrix of {layout.rows} x {layout.columns} is too large for one launch: cut its rows")
    if not rows:
        return
    if takes_reference(x):
        from strata.kernels.read_products.reference import read_products as by_definition

        by_definition(matrices, x, out)
        return
    from strata.kernels.read_products.triton import read_products as by_kernels

    by_kernels(matrices, x, out)
