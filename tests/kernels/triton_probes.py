"""Kernels that run one function of the product's kernels over an array. Needs Triton; knows no expected value."""

import triton
import triton.language as tl

from strata.kernels.expert_rows.triton import silu_times
from strata.kernels.instructions import dp4a, permute_bytes


@triton.jit
def instructions_kernel(a, b, sums, permuted):
    """16 words each: dp4a with the position as its start, and bytes 6, 4, 0, 7 of every pair."""
    at = tl.arange(0, 16)
    x, y = tl.load(a + at), tl.load(b + at)
    tl.store(sums + at, dp4a(x, y, at))
    tl.store(permuted + at, permute_bytes(x, y, 0x7046))


@triton.jit
def silu_kernel(gate, up, out):
    """256 values a program."""
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(out + at, silu_times(tl.load(gate + at), tl.load(up + at)))
