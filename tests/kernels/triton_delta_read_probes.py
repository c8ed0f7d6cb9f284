"""Kernels that call parts of reads' delta nets by themselves, for tests. Knows no expected value."""
# mypy: allow-untyped-defs, no-check-untyped-defs

import triton
import triton.language as tl

from strata.kernels.delta_read.solve import inverse_of
from strata.kernels.float_parts import in_parts


@triton.jit
def inverse_kernel(below, out):
    """(I + below)^-1 of one [64, 64] system."""
    number = tl.arange(0, 64)
    at = number[:, None] * 64 + number[None, :]
    tl.store(out + at, inverse_of(tl.load(below + at)))


@triton.jit
def parts_kernel(x, high, low):
    """Both parts of 256 values."""
    at = tl.arange(0, 256)
    of_high, of_low = in_parts(tl.load(x + at))
    tl.store(high + at, of_high)
    tl.store(low + at, of_low)
