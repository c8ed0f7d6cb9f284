"""Quantizing rows where a kernel made them: blocks of 32 columns, each inside one warp. Knows no weight and no launch.

The bits and places are those of activations.py. There a block has the shape [2, 16], and Triton moves every reduction
through shared memory, six barriers a call; here reductions and stores keep the layout [blocks, 32] of the values.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.division import divide, divide_by_127


@triton.jit
def store_blocks(x, q, records, row, block, blocks, row_step, block_step):
    """Quantize x float32 [BLOCKS, 32] and write it as the blocks `block` [BLOCKS] of a row, those below `blocks`.

    row: of all of them, or one for each. q, records, row_step, block_step: `Activations.arguments`.
    """
    largest = tl.max(tl.abs(x), axis=1)
    is_zero = largest < 7.888609052210118e-31  # 2^-100
    is_ordinary = (largest < float("inf")) & (is_zero == 0)
    d = tl.where(is_ordinary, divide_by_127(largest), tl.where(is_zero, 0.0, largest))
    inverse = divide(tl.full(d.shape, 1.0, tl.float32), tl.where(is_ordinary, d, 1.0))
    inverse = tl.where(is_ordinary, inverse, 0.0)
    rounded = (x * inverse[:, None] + 12582912.0) - 12582912.0  # 1.5 * 2^23: to the nearest integer, ties to even
    values = tl.minimum(tl.maximum(rounded, -127.0), 127.0).to(tl.int32)
    column = tl.arange(0, 32)[None, :]
    low = tl.sum(tl.where(column < 16, values, 0), axis=1)
    high = tl.sum(tl.where(column < 16, 0, values), axis=1)
    exists = (block < blocks)[:, None]
    at = (row.to(tl.int64) * row_step + block * block_step)[:, None]
    # Runs of four bytes lie together. Triton does not see it, and would move the values across warps to store them.
    byte = tl.max_contiguous(at * 32 + column % 16 // 4 * 8 + column // 16 * 4 + column % 4, [1, 4])
    tl.store(q.to(tl.pointer_type(tl.int8)) + byte, values.to(tl.int8), mask=exists)
    # A record's two words, by the first two columns: d, and the sums of both halves as int16.
    sums = (low & 0xFFFF) | (high << 16)
    word = tl.where(column == 0, d.to(tl.int32, bitcast=True)[:, None], sums[:, None])
    tl.store(records.to(tl.pointer_type(tl.int32)) + (at * 2 + column), word, mask=exists & (column < 2))
