"""Exact division without branches, for Triton kernels: the bits of tl.div_rn where quotients are ordinary numbers.

A GPU's own division asks of every quotient whether its operands are extreme, and branches. Between branches nothing
else is computed, so each quotient of a thread costs its whole latency; these go side by side. The steps are those of
the division's ordinary path: near reciprocal, one step of Newton, quotient, exact remainder, one correction. Knows no
kernel; used with `enable_fp_fusion=False`.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.packed_rows.sums import minus


@triton.jit
def _near_reciprocal_ptx(x):
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )  # fmt: skip


@triton.jit
def _near_reciprocal_plain(x):
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), x)


# 1 / x to a unit in the last place, for float32 between 2^-126 and 2^126.
near_reciprocal = _near_reciprocal_plain if triton.knobs.runtime.interpret else _near_reciprocal_ptx


@triton.jit
def divide(a, b):
    """a / b rounded once, of float32 blocks of one shape: b from 2^-126 to 2^126, a and a / b of at least 2^-100.

    A smaller a or a / b gives a number as small, whose last bit may differ. An infinite a gives NaN.
    """
    near = near_reciprocal(b)
    near = tl.fma(near, tl.fma(minus(b), near, tl.full(b.shape, 1.0, tl.float32)), near)
    quotient = a * near
    return tl.fma(near, tl.fma(minus(b), quotient, a), quotient)


@triton.jit
def divide_by_127(a):
    """a / 127 rounded once, of a float32 block between 2^-100 and infinity."""
    near = tl.full(a.shape, 1.0 / 127.0, tl.float32)
    quotient = a * near
    return tl.fma(near, tl.fma(tl.full(a.shape, -127.0, tl.float32), quotient, a), quotient)
