"""Gated delta net of a read's rows, from the projected rows on: checks, and chooses the road. Knows no arithmetic.

The rule runs in chunks of 64 rows that begin at absolute multiples of 64. Rows of the first chunk before the read, and
of the last one behind it, are rows of zeros that neither decay nor change the state. So a read has the bits, rows and
state, of its pieces that are cut at multiples of 64.
"""

import torch

from strata.kernels.delta_read.arguments import CHUNK, DeltaReadWork, check_read
from strata.kernels.delta_rows.arguments import DeltaRowsShape, DeltaState, DeltaVectors
from strata.kernels.roads import takes_reference

__all__ = ["CHUNK", "DeltaReadWork", "delta_read"]


def delta_read(
    projected: torch.Tensor,
    position: int,
    slot: int,
    state: DeltaState,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaReadWork,
    out: torch.Tensor,
    block_order: torch.Tensor | None = None,
) -> None:
    """Convolution, rule and gated norm of a slot's next rows -> out bfloat16 [rows, value_width].

    projected [rows, projected_width] float32 or bfloat16, rows one after another from `position` on. The slot's state
    and convolution tail (zeros where the text starts) are afterwards those behind the last row. Block b of 32 columns
    of out holds the value columns of block `block_order[b]` (int32 [value_width / 32], moves whole heads; None: as they
    stand). Raises ValueError for other shapes or types.
    """
    check_read(projected, position, slot, state, vectors, shape, work, out, block_order)
    if takes_reference(projected):
        from strata.kernels.delta_read.reference import delta_read as by_definition

        by_definition(projected, position, slot, state, vectors, shape, work, out, block_order)
    else:
        from strata.kernels.delta_read.triton import delta_read as by_kernels

        by_kernels(projected, position, slot, state, vectors, shape, work, out, block_order)
