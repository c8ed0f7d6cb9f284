"""Packed matrices times a few rows: checks, and chooses torch's definition or Triton. Knows no arithmetic."""

from collections.abc import Sequence

import torch

from strata.kernels.configurations import packed_launch
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.roads import is_reference_on, takes_reference
from strata.quant.layout import MatrixLayout
from strata.quant.packed import PackedMatrix

MOST_ELEMENTS = 1 << 31  # the kernels count a matrix's elements in 32 bits


def packed_rows(matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    """matrix [outputs, columns] in a storage code, x float32 [rows, columns] -> float32 [rows, outputs].

    On a GPU by Triton, elsewhere by the definition; the bits are the same, whatever the number of rows.
    """
    layout = matrix.layout
    if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != layout.columns:
        raise ValueError(f"rows must be float32 [n, {layout.columns}], not {x.dtype} {list(x.shape)}")
    if takes_reference(x):
        from strata.kernels.packed_rows.reference import packed_rows as by_definition

        return by_definition(matrix, x)
    _check_size(layout)
    if not x.shape[0]:
        return x.new_empty(0, layout.rows)
    from strata.kernels.packed_rows.triton import packed_rows as by_kernels

    return by_kernels(matrix, x.contiguous())


def multiply_into(matrices: Sequence[PackedMatrix], x: RowsOut, out: torch.Tensor) -> None:
    """Matrices under one another times the same rows: out float32 [rows, sum of outputs], in their order.

    Two matrices are one launch, so neighbours of equal layout should be one matrix. Integer codes read `x.quantized`,
    float codes `x.plain`, the definition `x.plain` alone: `room_for` makes what is needed. Launches only: safe to
    capture in a graph. Raises ValueError for other shapes, types, or rows that are missing.
    """
    if not matrices:
        raise ValueError("no matrix to multiply by")
    rows, layouts = out.shape[0], [matrix.layout for matrix in matrices]
    outputs = sum(layout.rows for layout in layouts)
    if out.dtype != torch.float32 or tuple(out.shape) != (rows, outputs) or out.stride(1) != 1:
        raise ValueError(f"out must be float32 [{rows}, {outputs}], not {out.dtype} {list(out.shape)}")
    is_reference = takes_reference(out)
    for layout in layouts:
        _check_size(layout)
        check_rows(layout, rows, x, is_reference)
    if is_reference:
        from strata.kernels.packed_rows.reference import multiply_into as by_definition

        by_definition(matrices, x, out)
        return
    from strata.kernels.packed_rows import joined

    joined.multiply_into(matrices, x, out)


def room_for(
    layouts: Sequence[MatrixLayout],
    rows: int,
    device: torch.device | str,
    reads_plain: bool = False,
    launch: LaunchShape | None = None,
) -> RowsOut:
    """Buffers for rows that matrices of these layouts read next; also as they are if `reads_plain`.

    Quantized blocks lie in the order that `launch` likes, by default the launch of the first matrix of an integer code.
    """
    device, columns = torch.device(device), layouts[0].columns
    integer = [layout for layout in layouts if not layout.code.is_float]
    is_reference = is_reference_on(device)
    plain = quantized = None
    if is_reference or reads_plain or len(integer) < len(layouts):
        plain = torch.zeros(rows, columns, dtype=torch.float32, device=device)
    if integer and not is_reference:
        from strata.kernels.packed_rows.triton import device_name

        launch = launch or packed_launch(device_name(device), integer[0], rows)
        quantized = Activations.empty(rows, integer[0].blocks, device, launch)
    return RowsOut(plain, quantized)


def check_rows(layout: MatrixLayout, rows: int, x: RowsOut, is_reference: bool) -> None:
    """Raise ValueError unless `x` holds `rows` rows in the form that a matrix of this layout reads."""
    if is_reference or layout.code.is_float:
        wanted = (rows, layout.columns)
        if x.plain is None:
            raise ValueError(f"a matrix in {layout.code.value} reads plain rows here, which are missing")
        if x.plain.dtype != torch.float32 or tuple(x.plain.shape) != wanted or not x.plain.is_contiguous():
            raise ValueError(f"rows must be float32 {list(wanted)}, not {x.plain.dtype} {list(x.plain.shape)}")
        return
    if x.quantized is None:
        raise ValueError(f"a matrix in {layout.code.value} reads quantized rows, which are missing")
    if x.quantized.records.numel() != rows * layout.blocks:
        found = x.quantized.records.numel()
        raise ValueError(f"{rows} rows of {layout.columns} are {rows * layout.blocks} quantized blocks, not {found}")


def _check_size(layout: MatrixLayout) -> None:
    if layout.tiles * 16 * layout.columns >= MOST_ELEMENTS:
        raise ValueError(f"a matrix of {layout.rows} x {layout.columns} is too large for one launch: cut its rows")
