"""Elementary functions for Triton kernels, of float32 blocks, by steps that round alike everywhere.

Only + - *, tl.fma, tl.div_rn and tl.sqrt_rn; a value's bits do not depend on its neighbours. Knows no kernel.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def exp_by_polynomial(x):
    """The exp of expert_rows/reference.py, by multiply, add and fma only."""
    x = tl.minimum(tl.maximum(x, -87.0), 88.0)
    n = (x * 1.44269504 + 12582912.0) - 12582912.0
    zero = tl.zeros(x.shape, tl.float32)
    r = tl.fma(n, zero - 0.693145752, x)
    r = tl.fma(n, zero - 1.42860677e-6, r)
    p = zero + 1.0 / 720.0
    p = tl.fma(p, r, zero + 1.0 / 120.0)
    p = tl.fma(p, r, zero + 1.0 / 24.0)
    p = tl.fma(p, r, zero + 1.0 / 6.0)
    p = tl.fma(p, r, zero + 0.5)
    p = tl.fma(p, r, zero + 1.0)
    p = tl.fma(p, r, zero + 1.0)
    return p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + exp_by_polynomial(-x))


@triton.jit
def silu(x):
    """x / (1 + exp(-x))."""
    return tl.div_rn(x, 1.0 + exp_by_polynomial(-x))


@triton.jit
def silu_times(gate, up):
    """(g / (1 + exp(-g))) * u."""
    return tl.div_rn(gate, 1.0 + exp_by_polynomial(-gate)) * up


@triton.jit
def log1p_of_fraction(y):
    """log(1 + y) for y in 0 .. 1, relative error below 3e-7: 2 atanh(s) of s = y / (2 + y) <= 1/3 by its series."""
    s = tl.div_rn(y, 2.0 + y)
    square = s * s
    zero = tl.zeros(y.shape, tl.float32)
    series = zero + 1.0 / 15.0
    series = tl.fma(series, square, zero + 1.0 / 13.0)
    series = tl.fma(series, square, zero + 1.0 / 11.0)
    series = tl.fma(series, square, zero + 1.0 / 9.0)
    series = tl.fma(series, square, zero + 1.0 / 7.0)
    series = tl.fma(series, square, zero + 1.0 / 5.0)
    series = tl.fma(series, square, zero + 1.0 / 3.0)
    return 2.0 * tl.fma(s * square, series, s)


@triton.jit
def softplus(x):
    """log(1 + exp(x)) without overflow."""
    return tl.maximum(x, 0.0) + log1p_of_fraction(exp_by_polynomial(-tl.abs(x)))


@triton.jit
def inverse_root(x):
    """1 / sqrt(x)."""
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), tl.sqrt_rn(x))
