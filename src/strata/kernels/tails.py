"""Kept tails of causal convolutions for Triton kernels: a slot's last rows in front of its rows of a window.

    extended rows   0 .. TAIL - 1        the slot's tail [TAIL, width]
                    TAIL ..              the segment's rows, `row_step` elements apart in memory

Knows no layer. `column` are the columns of a program, of which those that are `is_inside` exist.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.elementary import silu


@triton.jit
def load_extended(tail, rows, row_step, width, index, column, is_inside, TAIL: tl.constexpr):
    """Row `index` of the extended rows: float32, of column's shape. A window's rows fit 31 bits of elements."""
    is_kept = column * 0 + index < TAIL
    old = tl.load(tail + index * width + column, mask=is_inside & is_kept, other=0.0)
    new = tl.load(rows + (index - TAIL) * row_step + column, mask=is_inside & (column * 0 + index >= TAIL), other=0.0)
    return tl.where(is_kept, old, new)


@triton.jit
def convolve(
    tail, rows, row_step, width, taps, step, column, is_inside, KERNEL: tl.constexpr, DILATION: tl.constexpr
):  # fmt: skip
    """silu of the convolution of the segment's row `step`; taps [KERNEL, width] in order, products rounded."""
    TAIL: tl.constexpr = (KERNEL - 1) * DILATION
    summed = tl.zeros(column.shape, tl.float32)
    for tap in tl.static_range(KERNEL):
        value = load_extended(tail, rows, row_step, width, step + tap * DILATION, column, is_inside, TAIL)
        product = value * tl.load(taps + tap * width + column, mask=is_inside, other=0.0)
        summed = product if tap == 0 else summed + product
    return silu(summed)


@triton.jit
def move_tail(tail, rows, row_step, width, accepted, column, is_inside, TAIL: tl.constexpr):
    """Row j of the tail becomes extended row accepted + j. Every column is loaded as a whole before it is stored."""
    values = ()
    for j in tl.static_range(TAIL):
        values += (load_extended(tail, rows, row_step, width, accepted + j, column, is_inside, TAIL),)
    for j in tl.static_range(TAIL):
        tl.store(tail + j * width + column, values[j], mask=is_inside)
