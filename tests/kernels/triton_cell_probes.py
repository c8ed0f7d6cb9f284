"""Kernels that run what cells store by itself, for tests. Knows no expected value."""
# mypy: allow-untyped-defs, no-check-untyped-defs

import triton
import triton.language as tl

from strata.kernels.attention_rows.levels import high_levels, levels_of_bytes, low_levels
from strata.kernels.attention_rows.products import thirds
from strata.kernels.stored_cells import decode_heads, rotate, store_head


@triton.jit
def store_kernel(x, codes, scales, CODE: tl.constexpr, DIM: tl.constexpr):
    """x float32 [heads, DIM] -> codes and scales; grid (heads)."""
    head = tl.program_id(0)
    store_head(codes, scales, head, tl.load(x + head * DIM + tl.arange(0, DIM)), CODE, DIM)


@triton.jit
def decode_kernel(codes, scales, out, heads, CODE: tl.constexpr, DIM: tl.constexpr):
    """Stored heads -> float32 [heads, DIM], sixteen of them a program; grid (heads / 16)."""
    head = tl.program_id(0) * 16 + tl.arange(0, 16)
    values = decode_heads(codes, scales, head, head < heads, CODE, DIM, 16)
    tl.store(out + head[:, None] * DIM + tl.arange(0, DIM)[None, :], values, mask=(head < heads)[:, None])


@triton.jit
def rotate_kernel(x, out, DIM: tl.constexpr):
    """x float32 [heads, DIM], rotated; grid (heads)."""
    at = tl.program_id(0) * DIM + tl.arange(0, DIM)
    tl.store(out + at, rotate(tl.load(x + at), 1, DIM))


@triton.jit
def levels_kernel(signed, unsigned, whole, low, high):
    """256 of int8, and of uint8 -> bfloat16: what the bytes and both nibbles mean."""
    at = tl.arange(0, 256)
    tl.store(whole + at, levels_of_bytes(tl.load(signed + at)))
    tl.store(low + at, low_levels(tl.load(unsigned + at)))
    tl.store(high + at, high_levels(tl.load(unsigned + at)))


@triton.jit
def thirds_kernel(x, out):
    """x float32 [256] -> float32 [3, 256]."""
    at = tl.arange(0, 256)
    first, second, third = thirds(tl.load(x + at), 0)
    tl.store(out + at, first.to(tl.float32))
    tl.store(out + 256 + at, second.to(tl.float32))
    tl.store(out + 512 + at, third.to(tl.float32))
