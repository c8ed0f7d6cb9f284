"""Residual streams mixed into a layer's input by low-rank gates. Checks and chooses the road; knows no layer."""

import torch

from strata.kernels.checks import check_rows_out, check_tensor
from strata.kernels.packed_rows import MOST_ELEMENTS
from strata.kernels.roads import takes_reference
from strata.kernels.stream_gates.gates_out import GatesOut
from strata.quant.layout import BLOCK_COLUMNS
from strata.quant.packed import PackedMatrix

__all__ = ["GatesOut", "stream_gates"]


def stream_gates(
    shares: torch.Tensor, normed: torch.Tensor, up: PackedMatrix, streams_count: int, out: GatesOut
) -> None:
    """Mix normed streams into a layer's input, and find the strengths with which its output is added to them.

    shares float32 [rows, low_rank (+ streams_count if there are strengths)]: the product of `down` and the normed rows;
    normed float32 [rows, streams_count * hidden]; up [streams_count * hidden, low_rank].

        low = silu(shares[:, :low_rank] / streams)     gates = sigmoid(up low), in the arithmetic of packed rows
        mixed = mean over the streams of gates * normed     strengths = 2 sigmoid(shares[:, low_rank:] / streams)

    The bits are those of the twin, and a row's depend on that row alone. Launches only, one kernel: safe to capture in
    a graph. Raises ValueError for other shapes or types.
    """
    rows, width = normed.shape
    layout = up.layout
    if streams_count < 1 or width % (streams_count * BLOCK_COLUMNS):
        raise ValueError(
            f"{width} columns in {streams_count} streams: a stream must be whole blocks of {BLOCK_COLUMNS} columns"
        )
    if layout.rows != width:
        raise ValueError(f"up has {layout.rows} rows; it must have as many as normed has columns, {width}")
    if layout.tiles * 16 * layout.columns >= MOST_ELEMENTS:
        raise ValueError(f"up of {layout.rows} x {layout.columns} is too large for one launch")
    check_tensor("normed", normed, (rows, width))
    check_tensor("shares", shares, (rows, layout.columns + (0 if out.strengths is None else streams_count)))
    check_rows_out("low", out.low, rows, layout.columns)
    check_rows_out("mixed", out.mixed, rows, width // streams_count)
    check_tensor("strengths", out.strengths, (rows, streams_count))
    if rows == 0:
        return
    if takes_reference(normed):
        from strata.kernels.stream_gates.reference import stream_gates as by_definition

        by_definition(shares, normed, up, streams_count, out)
        return
    from strata.kernels.stream_gates.triton import stream_gates as by_kernels

    by_kernels(shares, normed, up, streams_count, out)
