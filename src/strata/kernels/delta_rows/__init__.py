"""Gated delta net of a window's rows, from the projected rows on, and its commit: checks, and chooses the road.

Knows no arithmetic. A window reads the state and leaves it; its projected rows are what a commit replays, so keep them.
"""

import torch

from strata.kernels.delta_rows.arguments import (
    DeltaRowsShape,
    DeltaRowsWork,
    DeltaState,
    DeltaStates,
    DeltaVectors,
    check_commit,
    check_rows,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.kernels.window_rows import WindowRows

__all__ = ["DeltaRowsShape", "DeltaRowsWork", "DeltaState", "DeltaStates", "DeltaVectors", "commit_delta", "delta_rows"]


def delta_rows(
    projected: torch.Tensor,
    rows: WindowRows,
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
    Unused rows are left alone. Raises ValueError for other shapes or types.
    """
    check_rows(projected, rows, state, vectors, shape, work, out, block_order)
    if takes_reference(projected):
        from strata.kernels.delta_rows.reference import delta_rows as by_definition

        by_definition(projected, rows, state, vectors, shape, work, out, block_order)
    else:
        from strata.kernels.delta_rows.triton import delta_rows as by_kernels

        by_kernels(projected, rows, state, vectors, shape, work, out, block_order)


def commit_delta(
    states: DeltaStates,
    projected: torch.Tensor,
    rows: WindowRows,
    accepted: torch.Tensor,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
) -> None:
    """Make the first `accepted` (int32 [segments]) rows of every segment part of its slot's state, in all layers.

    projected float32 [layers, rows, projected_width] are the window's; every tensor of `vectors` has an axis of layers
    in front. Operations and bits are the window's. A segment of 0 accepted rows, or of slot -1, changes nothing.
    """
    check_commit(states, projected, rows, accepted, vectors, shape)
    if takes_reference(projected):
        from strata.kernels.delta_rows.reference import commit_delta as by_definition

        by_definition(states, projected, rows, accepted, vectors, shape)
    else:
        from strata.kernels.delta_rows.triton import commit_delta as by_kernels

        by_kernels(states, projected, rows, accepted, vectors, shape)
