"""Packed matrix times a few rows: checks, and chooses torch's definition or Triton. Knows no arithmetic."""

import torch

from strata.quant.packed import PackedMatrix

MOST_ELEMENTS = 1 << 31  # the kernels count a matrix's elements in 32 bits


def packed_rows(matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    """matrix [outputs, columns] in a storage code, x float32 [rows, columns] -> float32 [rows, outputs].

    On a GPU by Triton, elsewhere by the definition; the bits are the same, whatever the number of rows.
    """
    layout = matrix.layout
    if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != layout.columns:
        raise ValueError(f"rows must be float32 [n, {layout.columns}], not {x.dtype} {list(x.shape)}")
    if x.device.type == "cpu":
        from strata.kernels.packed_rows.reference import packed_rows as by_definition

        return by_definition(matrix, x)
    if layout.tiles * 16 * layout.columns >= MOST_ELEMENTS:
        raise ValueError(f"a matrix of {layout.rows} x {layout.columns} is too large for one launch: cut its rows")
    if not x.shape[0]:
        return x.new_empty(0, layout.rows)
    from strata.kernels.packed_rows import triton

    return triton.packed_rows(matrix, x.contiguous())
