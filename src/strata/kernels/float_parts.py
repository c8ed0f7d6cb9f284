"""Float32 values as two bfloat16 on the matrix units: nearly float32's precision and all its range, in three products.

What is left out is below 2^-16 of a product. Knows no layer.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def in_parts(x):
    """The nearest bfloat16, and what that left out, rounded. By bits: GPUs convert back one by one, at a sixteenth."""
    nearest = ((x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000).to(tl.float32, bitcast=True)
    return nearest.to(tl.bfloat16), (x - nearest).to(tl.bfloat16)


@triton.jit
def add_product(total, a_high, a_low, b_high, b_low):
    """total + a @ b, the small products first."""
    total = tl.dot(a_low, b_high, total)
    total = tl.dot(a_high, b_low, total)
    return tl.dot(a_high, b_high, total)


@triton.jit
def load_parts(at, low):
    """Both parts of a value; the second lies `low` elements behind the first."""
    return tl.load(at), tl.load(at + low)


@triton.jit
def store_parts(at, low, x):
    """As `load_parts` finds them; `low` elements behind."""
    high, rest = in_parts(x)
    tl.store(at, high)
    tl.store(at + low, rest)
