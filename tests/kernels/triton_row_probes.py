"""Kernels that run one step of the kernels of windows over an array. Needs Triton; knows no expected value."""

import triton
import triton.language as tl

from strata.kernels.packed_rows.dot_blocks import add_lanes, terms_of
from strata.kernels.tails import move_tail


@triton.jit
def elementary_kernel(x, out, FUNCTION: tl.constexpr):
    """256 values a program."""
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(out + at, FUNCTION(tl.load(x + at)))


@triton.jit
def move_tail_kernel(tail, rows, row_step, width, accepted, TAIL: tl.constexpr, COLUMNS: tl.constexpr):
    """One tail [TAIL, width], COLUMNS of it."""
    column = tl.arange(0, COLUMNS)
    move_tail(tail, rows, row_step, width, tl.load(accepted), column, column < width, TAIL)


@triton.jit
def parts_kernel(x, out, SIDE: tl.constexpr):
    """x [8 * SIDE, 4] -> the lanes' sums of each of its parts: out [SIDE, 4]."""
    at = tl.arange(0, 8 * SIDE)[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = tl.load(x + at)
    for part in tl.static_range(SIDE):
        factor, value = terms_of(values, values, SIDE)[part]
        tl.store(out + part * 4 + tl.arange(0, 4), add_lanes((factor + value) * 0.5))
