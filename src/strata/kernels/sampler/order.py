"""Logits as integers of the same order, and what the kernels read of a row's slot. Knows no launch.

ordered     int32 that rises with a float32: for the largest logit and the best score
packed      int64 of both, an ordered number and its token: the larger wins, of equal ones the lower id
magnitude   int32 of a distance x <= 0 from the largest logit: the bits of -x, which rise as logits fall
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.sampler import slots

WORDS = tl.constexpr(slots.WORDS)
INVERSE_TEMPERATURE = tl.constexpr(slots.INVERSE_TEMPERATURE)
TOP_K, TOP_P = tl.constexpr(slots.TOP_K), tl.constexpr(slots.TOP_P)

SIGNLESS = tl.constexpr(0x7FFFFFFF)
ORDERED_INF = tl.constexpr(0x7F800000)
ORDERED_MINUS_INF = tl.constexpr(-0x7F800001)
LOWEST = tl.constexpr(-(1 << 63))


@triton.jit
def ordered(value):
    """Both zeros are one number; NaN is above inf."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return tl.where(value == value, bits ^ ((bits >> 31) & SIGNLESS), SIGNLESS)


@triton.jit
def packed(value, token_ids):
    """Of float32 values and int32 ids."""
    return (ordered(value).to(tl.int64) << 32) | (token_ids ^ SIGNLESS).to(tl.int64)


@triton.jit
def token_of(winner):
    """The id that was packed."""
    return (winner & SIGNLESS).to(tl.int32) ^ SIGNLESS


@triton.jit
def number_of(winner):
    """The ordered number that was packed."""
    return (winner >> 32).to(tl.int32)


@triton.jit
def is_finite(number):
    """Whether an ordered number is neither NaN nor infinite."""
    return (number > ORDERED_MINUS_INF) & (number < ORDERED_INF)


@triton.jit
def float_of(number):
    """The float32 of an ordered number."""
    return (number ^ ((number >> 31) & SIGNLESS)).to(tl.float32, bitcast=True)


@triton.jit
def magnitude_of(distance):
    """Of distances from the largest logit."""
    return distance.to(tl.int32, bitcast=True) & SIGNLESS


@triton.jit
def winner_of(winners, row, WHICH: tl.constexpr, PROGRAMS: tl.constexpr):
    """The best of a row's programs: WHICH 0 of logits, 1 of scores."""
    return tl.max(tl.load(winners + (row * 2 + WHICH) * PROGRAMS + tl.arange(0, PROGRAMS)), axis=0)


@triton.jit
def float_word(words, COLUMN: tl.constexpr):
    """A word that holds the bits of a float32."""
    return tl.load(words + COLUMN).to(tl.float32, bitcast=True)


@triton.jit
def top_p_of(words):
    """float64."""
    low, high = tl.load(words + TOP_P).to(tl.int64), tl.load(words + TOP_P + 1).to(tl.int64)
    return ((high << 32) | (low & 0xFFFFFFFF)).to(tl.float64, bitcast=True)


@triton.jit
def has_top_k(words, VOCABULARY: tl.constexpr):
    """Whether top-k rules anything out."""
    top_k = tl.load(words + TOP_K)
    return (top_k > 0) & (top_k < VOCABULARY)


@triton.jit
def has_top_p(words):
    """Whether top-p rules anything out."""
    return top_p_of(words) < 1.0


@triton.jit
def is_drawn(words, number):
    """Whether a token is drawn from a row whose largest logit is this ordered number: finite, and not greedy."""
    return is_finite(number) & (float_word(words, INVERSE_TEMPERATURE) != 0.0)
