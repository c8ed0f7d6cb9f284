"""Refusing tensors that a kernel would misread: shape, type, order in memory. Knows no kernel."""

import torch

from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.layout import BLOCK_COLUMNS


def check_tensor(
    name: str, tensor: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    """Raise ValueError, with the field's name, unless the tensor is None or contiguous and of this shape and type."""
    if tensor is None:
        return
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        contiguous = "" if tensor.is_contiguous() else ", not contiguous"
        raise ValueError(
            f"{name} must be contiguous {dtype} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}{contiguous}"
        )


def check_rows_out(name: str, out: RowsOut, rows: int, columns: int) -> None:
    """Raise ValueError unless `out` has room for rows [rows, columns], plain, quantized or both."""
    if out.plain is None and out.quantized is None:
        raise ValueError(f"{name} has neither plain nor quantized rows: give at least one")
    check_tensor(f"{name}.plain", out.plain, (rows, columns))
    if out.quantized is None:
        return
    if columns % BLOCK_COLUMNS:
        raise ValueError(f"{name}.quantized: {columns} columns are no whole blocks of {BLOCK_COLUMNS}; give plain rows")
    blocks = rows * (columns // BLOCK_COLUMNS)
    check_tensor(f"{name}.quantized.values", out.quantized.values, (blocks, BLOCK_COLUMNS // 8), torch.int64)
    check_tensor(f"{name}.quantized.records", out.quantized.records, (blocks,), torch.int64)


def plain_rows(name: str, out: RowsOut) -> torch.Tensor:
    """What a torch twin writes: plain rows alone. Raises ValueError where quantized rows are wanted too."""
    if out.plain is None or out.quantized is not None:
        raise ValueError(f"{name}: the torch road writes plain rows alone; give RowsOut(plain, None)")
    return out.plain
