"""Random noise and weights inside of Triton kernels: the bits of philox.py and filters.py. Knows no row, no launch."""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.sampler import filters, philox

# Multipliers as they are: philox.py has them less 2^32.
MULTIPLIER_0, MULTIPLIER_1 = (tl.constexpr(multiplier + (1 << 32)) for multiplier in philox.MULTIPLIERS)
KEY_STEP_0, KEY_STEP_1 = (tl.constexpr(step) for step in philox.KEY_STEPS)
L0, L1, L2, L3, L4, L5, L6, L7, L8 = (tl.constexpr(coefficient) for coefficient in philox.LOG_POLYNOMIAL)
LOG_LN2_HIGH, LOG_LN2_LOW = tl.constexpr(philox.LN2_HIGH), tl.constexpr(philox.LN2_LOW)
SQRT_HALF_BITS = tl.constexpr(philox.SQRT_HALF_BITS)
WORD_STEP, HALF_STEP, LARGEST_V = tl.constexpr(2.0**-32), tl.constexpr(2.0**-33), tl.constexpr(1.0 - 2.0**-24)

E0, E1, E2, E3, E4, E5, E6 = (tl.constexpr(coefficient) for coefficient in filters.EXP_COEFFICIENTS)
FARTHEST = tl.constexpr(filters.FARTHEST)
LOG2_E, ROUNDER = tl.constexpr(filters.LOG2_E), tl.constexpr(filters.ROUNDER)
EXP_LN2_HIGH, EXP_LN2_LOW = tl.constexpr(filters.LN2_HIGH), tl.constexpr(filters.LN2_LOW)
WEIGHT_EXPONENT = tl.constexpr(127 + filters.WEIGHT_BITS)


@triton.jit
def gumbel(seed_low, seed_high, position, token_ids, choice):
    """Noise, float32, of a block of token ids (int32); the other words are int32 scalars."""
    return -log_float32(waiting_time(first_word(seed_low, seed_high, position, token_ids, choice)))


@triton.jit
def first_word(seed_low, seed_high, position, token_ids, choice):
    """The first word of Philox4x32-10, uint32."""
    x1 = token_ids.to(tl.uint32)
    x3 = x1 ^ x1
    x0, x2 = x3 + position.to(tl.uint32), x3 + choice.to(tl.uint32)
    key0, key1 = x3 + seed_low.to(tl.uint32), x3 + seed_high.to(tl.uint32)
    multiplier0, multiplier1 = x3 + MULTIPLIER_0, x3 + MULTIPLIER_1
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(x0, multiplier0), x0 * multiplier0
        high1, low1 = tl.umulhi(x2, multiplier1), x2 * multiplier1
        x0, x1, x2, x3 = high1 ^ x1 ^ key0, low1, high0 ^ x3 ^ key1, low0
        key0, key1 = key0 + KEY_STEP_0, key1 + KEY_STEP_1
    return x0


@triton.jit
def waiting_time(word):
    """-log(1 - v) of v = word * 2^-32 + 2^-33."""
    v = tl.minimum(word.to(tl.float32) * WORD_STEP + HALF_STEP, LARGEST_V)
    f = -v
    square = f * f
    series = f + ((f * square) * log_polynomial(f) - square * 0.5)
    return -tl.where(v < 0.25, series, log_float32(1.0 - v))


@triton.jit
def log_float32(x):
    """Natural logarithm of positive normal float32 numbers."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    square = f * f
    scale = exponent.to(tl.float32)
    tail = (f * square) * log_polynomial(f)
    tail = tail + scale * LOG_LN2_LOW
    tail = tail - square * 0.5
    return (f + tail) + scale * LOG_LN2_HIGH


@triton.jit
def log_polynomial(f):
    """P(f) of log(1 + f)."""
    p = f * L0 + L1
    p = p * f + L2
    p = p * f + L3
    p = p * f + L4
    p = p * f + L5
    p = p * f + L6
    p = p * f + L7
    return p * f + L8


@triton.jit
def weight_of(distance):
    """floor(2^30 e^x), int32, of distances x <= 0: a block or one number."""
    x = tl.maximum(distance, -FARTHEST)
    n = (x * LOG2_E + ROUNDER) - ROUNDER
    r = (x - n * EXP_LN2_HIGH) - n * EXP_LN2_LOW
    p = r * E0 + E1
    p = p * r + E2
    p = p * r + E3
    p = p * r + E4
    p = p * r + E5
    p = p * r + E6
    power = ((n.to(tl.int32) + WEIGHT_EXPONENT) << 23).to(tl.float32, bitcast=True)
    return (p * power).to(tl.int32)
