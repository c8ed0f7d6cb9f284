"""Residual streams mixed into a layer's input by low-rank gates. Checks and chooses the road; knows no layer.

Two launches after one another: `gates_down` makes what is low, `stream_gates` the gates, and mixes.
"""

from collections.abc import Sequence

import torch

from strata.kernels.checks import check_rows_out, check_tensor
from strata.kernels.packed_rows import MOST_ELEMENTS, check_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.kernels.stream_gates.low_out import LowOut, arrival_columns
from strata.quant.layout import BLOCK_COLUMNS, MatrixLayout
from strata.quant.packed import PackedMatrix

__all__ = ["LowOut", "arrival_columns", "gates_down", "stream_gates"]


def gates_down(down: Sequence[PackedMatrix], normed: RowsOut, streams_count: int, out: LowOut) -> None:
    """Normed streams times `down`, and what the gates and the write that follows make of it.

    down: matrices under one another, [low_rank (+ streams_count if there are strengths), streams_count * hidden], each
    one launch; normed [rows, streams_count * hidden], as `packed_rows.multiply_into` reads rows.

        shares = down normed, in the arithmetic of packed rows
        low = silu(shares[:, :low_rank] / streams)     strengths = 2 sigmoid(shares[:, low_rank:] / streams)

    The bits are those of the twin, and a row's depend on that row alone. Launches only: safe to capture in a graph.
    Raises ValueError for other shapes or types.
    """
    layouts = [matrix.layout for matrix in down]
    rows, width = out.shares.shape
    low_rank = width - (0 if out.strengths is None else streams_count)
    is_reference = takes_reference(out.shares)
    for layout in layouts:
        _check_size("down", layout)
        check_rows(layout, rows, normed, is_reference)
    if sum(layout.rows for layout in layouts) != width:
        raise ValueError(f"down has {sum(layout.rows for layout in layouts)} rows; there is room for {width} shares")
    if out.low.quantized is not None and any(layout.rows % BLOCK_COLUMNS for layout in layouts[:-1]):
        raise ValueError(f"down's parts of {[layout.rows for layout in layouts]} rows cut blocks of {BLOCK_COLUMNS}")
    check_tensor("shares", out.shares, (rows, width))
    check_rows_out("low", out.low, rows, low_rank)
    check_tensor("strengths", out.strengths, (rows, streams_count))
    check_tensor("arrivals", out.arrivals, (rows, arrival_columns(width)), torch.int32)
    if rows == 0:
        return
    if is_reference:
        from strata.kernels.stream_gates.reference import gates_down as by_definition

        by_definition(down, normed, streams_count, out)
        return
    from strata.kernels.stream_gates.down import gates_down as by_kernels

    by_kernels(down, normed, streams_count, out)


def stream_gates(low: RowsOut, normed: torch.Tensor, up: PackedMatrix, streams_count: int, mixed: RowsOut) -> None:
    """Mix normed streams into a layer's input.

    low [rows, low_rank] of `gates_down`: quantized where `up` has an integer code, plain where it has a float code and
    for the twin; normed float32 [rows, streams_count * hidden]; up [streams_count * hidden, low_rank]; mixed
    [rows, hidden].

        gates = sigmoid(up low), in the arithmetic of packed rows     mixed = mean over the streams of gates * normed

    The bits are those of the twin, and a row's depend on that row alone. One launch: safe to capture in a graph. Raises
    ValueError for other shapes or types.
    """
    rows, width = normed.shape
    if streams_count < 1 or width % (streams_count * BLOCK_COLUMNS):
        raise ValueError(
            f"{width} columns in {streams_count} streams: a stream must be whole blocks of {BLOCK_COLUMNS} columns"
        )
    if up.layout.rows != width:
        raise ValueError(f"up has {up.layout.rows} rows; it must have as many as normed has columns, {width}")
    _check_size("up", up.layout)
    is_reference = takes_reference(normed)
    check_tensor("normed", normed, (rows, width))
    check_rows(up.layout, rows, low, is_reference)
    check_rows_out("mixed", mixed, rows, width // streams_count)
    if rows == 0:
        return
    if is_reference:
        from strata.kernels.stream_gates.reference import stream_gates as by_definition

        by_definition(low, normed, up, streams_count, mixed)
        return
    from strata.kernels.stream_gates.triton import stream_gates as by_kernels

    by_kernels(low, normed, up, streams_count, mixed)


def _check_size(name: str, layout: MatrixLayout) -> None:
    if layout.tiles * 16 * layout.columns >= MOST_ELEMENTS:
        raise ValueError(f"{name} of {layout.rows} x {layout.columns} is too large for one launch")
