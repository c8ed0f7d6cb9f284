"""Kernels that run one function around gates and routes over an array. Needs Triton; knows no expected value."""

import triton
import triton.language as tl

from strata.kernels.arrivals import arrives_last
from strata.kernels.division import divide, divide_by_127
from strata.kernels.router.list_work import rows_before


@triton.jit
def division_kernel(a, b, ours, own, by_127, own_by_127, BLOCK: tl.constexpr):
    """a / b and a / 127 by the product's steps and by the GPU's own division."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(a + at), tl.load(b + at)
    tl.store(ours + at, divide(x, y))
    tl.store(own + at, tl.div_rn(x, y))
    tl.store(by_127 + at, divide_by_127(x))
    tl.store(own_by_127 + at, tl.div_rn(x, tl.full(x.shape, 127.0, tl.float32)))


@triton.jit
def function_kernel(x, out, FUNCTION: tl.constexpr):
    """256 values a program."""
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(out + at, FUNCTION(tl.load(x + at)))


@triton.jit
def rows_before_kernel(words, rows, out):
    """32 words."""
    at = tl.arange(0, 32)
    tl.store(out + at, rows_before(tl.load(words + at), tl.load(rows + at)))


@triton.jit
def arrivals_kernel(written, arrivals, sums, lasts):
    """Grid (programs, groups): a program writes one number of its group; the last adds them up, and says who it is."""
    program, group = tl.program_id(0), tl.program_id(1)
    tl.store(written + group * 16 + program, group * 100 + program)
    if arrives_last(arrivals + group, tl.num_programs(0)):
        number = tl.arange(0, 16)
        of_others = tl.load(written + group * 16 + number, number < tl.num_programs(0), other=0, cache_modifier=".cg")
        tl.store(sums + group, tl.sum(of_others, axis=0))
        tl.atomic_add(lasts + group, 1)
