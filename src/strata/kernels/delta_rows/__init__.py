"""Gated delta net of a window's rows, from the projected rows on, and its commit: checks, and chooses the road.

Knows no arithmetic. Which rows become state is known only behind the window, except of segments that are *certain*
(`SegmentLengths`): their state is written as it was computed. That of the others stays, and the commit computes their
accepted rows once more, from the projected rows, so keep those. Convolution tails, which programs of one launch share,
always move in the commit.

A state is then moved twice (read, written) and not three times. It is for callers to say what is certain, with the
same `lengths` for a window and its commit:

    every row becomes state           longest rows are certain
    the device draws and accepts      one row is: its token always stands, unless its logits are not finite; the request
                                      then fails, and its state, half moved, is nobody's to go on from
    somebody may still take none      nothing is
"""

import torch

from strata.kernels.delta_rows.arguments import (
    DeltaRowsShape,
    DeltaRowsWork,
    DeltaState,
    DeltaStates,
    DeltaVectors,
    SegmentLengths,
    check_commit,
    check_rows,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.kernels.window_rows import WindowRows

__all__ = [
    "DeltaRowsShape",
    "DeltaRowsWork",
    "DeltaState",
    "DeltaStates",
    "DeltaVectors",
    "SegmentLengths",
    "commit_delta",
    "delta_rows",
]


def delta_rows(
    projected: torch.Tensor,
    rows: WindowRows,
    lengths: SegmentLengths,
    state: DeltaState,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaRowsWork,
    out: RowsOut,
    block_order: torch.Tensor | None = None,
) -> None:
    """Convolution, rule and gated norm of projected float32 [rows, projected_width] -> out [rows, value_width].

    Block b of 32 columns of out holds the value columns of block `block_order[b]` (int32 [value_width / 32], moves
    whole heads; None: as they stand). out.quantized needs out.plain beside it where 32 does not divide value_dim.
    Of a state nothing changes but certain segments' `state.delta`. Unused rows are left alone. Raises ValueError for
    other shapes or types.
    """
    check_rows(projected, rows, lengths, state, vectors, shape, work, out, block_order)
    if takes_reference(projected):
        from strata.kernels.delta_rows.reference import delta_rows as by_definition

        by_definition(projected, rows, lengths, state, vectors, shape, work, out, block_order)
    else:
        from strata.kernels.delta_rows.triton import delta_rows as by_kernels

        by_kernels(projected, rows, lengths, state, vectors, shape, work, out, block_order)


def commit_delta(
    states: DeltaStates,
    projected: torch.Tensor,
    rows: WindowRows,
    lengths: SegmentLengths,
    accepted: torch.Tensor,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
) -> None:
    """Make the first `accepted` (int32 [segments]) rows of every segment part of its slot's state, in all layers.

    projected float32 [layers, rows, projected_width] are the window's; every tensor of `vectors` has an axis of layers
    in front. Operations and bits are the window's. A segment of 0 accepted rows, or of slot -1, changes nothing; of a
    certain one only the tails are left to move.
    """
    check_commit(states, projected, rows, lengths, accepted, vectors, shape)
    if takes_reference(projected):
        from strata.kernels.delta_rows.reference import commit_delta as by_definition

        by_definition(states, projected, rows, lengths, accepted, vectors, shape)
    else:
        from strata.kernels.delta_rows.triton import commit_delta as by_kernels

        by_kernels(states, projected, rows, lengths, accepted, vectors, shape)
