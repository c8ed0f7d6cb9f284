"""Scores of blocks for the rows of a read, on the matrix units, from float32 values as two bfloat16.

Knows products; knows no choice. A score's bits depend on its row and its block alone.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.float_parts import add_product, in_parts

VALUES_AT_ONCE = 1024  # that a program makes parts of


@triton.jit(do_not_specialize=["count"])
def parts_kernel(x, high, low, count, VALUES: tl.constexpr):
    """x [count] of any float type -> both parts of its values."""
    at = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    is_value = at < count
    nearest, rest = in_parts(tl.load(x + at, mask=is_value, other=0.0).to(tl.float32))
    tl.store(high + at, nearest, mask=is_value)
    tl.store(low + at, rest, mask=is_value)


@triton.jit(do_not_specialize=["rows", "position"])
def scores_kernel(
    query_high, query_low, key_high, key_low, scores, greatest, step, rows, position, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, RATIO: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Parts of queries [rows, HEADS, DIM] of rows from `position` on, of keys [blocks, DIM] -> scores [rows, step].

    And the greatest of each GROUP of them, [rows, step / GROUP]. grid (tiles of blocks, tiles of rows). Of a tile with
    a block that is complete for one of its rows, a block that is not complete for a row has the score 0.
    """
    first_row, first_block = tl.program_id(1) * ROWS, tl.program_id(0) * BLOCKS
    complete = (position + tl.minimum(first_row + ROWS, rows)) // RATIO
    if first_block < complete:
        d = tl.arange(0, DIM)[None, :]
        own_row, own_block = first_row + tl.arange(0, ROWS), first_block + tl.arange(0, BLOCKS)
        of_row = tl.minimum(own_row, rows - 1)[:, None] * (HEADS * DIM) + d
        of_block = tl.minimum(own_block, complete - 1)[:, None] * DIM + d
        high, low = tl.trans(tl.load(key_high + of_block)), tl.trans(tl.load(key_low + of_block))
        total = tl.zeros((ROWS, BLOCKS), tl.float32)
        for head in tl.range(0, HEADS, num_stages=STAGES):
            of_head = of_row + head * DIM
            product = add_product(
                tl.zeros((ROWS, BLOCKS), tl.float32), tl.load(query_high + of_head), tl.load(query_low + of_head),
                high, low,
            )  # fmt: skip
            total += tl.where(product > 0.0, product, 0.0)
        is_complete = own_block[None, :] < ((position + own_row + 1) // RATIO)[:, None]
        total = tl.where(is_complete, total * scale, 0.0)
        is_row = (own_row < rows)[:, None]
        tl.store(scores + own_row[:, None] * step + own_block[None, :], total, mask=is_row)
        of_groups = tl.max(tl.reshape(total, (ROWS, BLOCKS // GROUP, GROUP)), axis=2)
        group = first_block // GROUP + tl.arange(0, BLOCKS // GROUP)
        tl.store(greatest + own_row[:, None] * (step // GROUP) + group[None, :], of_groups, mask=is_row)
