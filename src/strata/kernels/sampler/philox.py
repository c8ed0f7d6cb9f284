"""Random numbers that depend on what they are for and on nothing else: Philox4x32-10 and the Gumbel noise made of it.

Knows counters and bits; no logits and no request. This torch code is the definition that kernels repeat bit for bit:
integers, float32 multiply, add and subtract one at a time in the order written, no fma, no library logarithm.
Philox: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).

    word     = Philox4x32-10(key = seed, counter = (position, token id, choice, 0)), first of its four words
    v        = min(float32(word) * 2^-32 + 2^-33, 1 - 2^-24)            in (0, 1), finest where it is small
    wait     = -log(1 - v)                                              exponential: the smallest waits decide a draw
    gumbel   = -log(wait)                                               from GUMBEL_MIN to GUMBEL_MAX
"""

from typing import Any

import torch

# Salmon et al., table 2: multipliers, less 2^32 so that a product with 32 bits fits int64; the key's increments.
MULTIPLIERS = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

# log(1 + f) = f - f^2/2 + f^3 P(f) for f from sqrt(1/2) - 1 to sqrt(2) - 1: Chebyshev fit of degree 8, rounded to
# float32. Measured over [1e-10, 50]: at most 0.83 units in the last place.
LOG_POLYNOMIAL = (
    0.07149753719568253,
    -0.115712009370327,
    0.11661510914564133,
    -0.12411050498485565,
    0.14249937236309052,
    -0.1666848063468933,
    0.20000708103179932,
    -0.24999989569187164,
    0.3333333134651184,
)
LN2_HIGH = 0.693359375  # ln 2 in two parts: the exponent times the first is exact
LN2_LOW = -2.12194440e-4
SQRT_HALF_BITS = 0x3F3504F3

GUMBEL_MIN = -2.8115408420562744  # of the largest wait, -log(2^-24)
GUMBEL_MAX = 22.873857498168945  # of the smallest wait, 2^-33


def philox(seed: int, *counter: int | torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The four 32-bit words, as int64 tensors, of counters of four words: int64 tensors or one number for all.

    `seed` is taken modulo 2^64, its low half being the key's first word; counter words are in 0..2^32-1.
    """
    key0, key1 = seed & _MASK, (seed >> 32) & _MASK
    x0, x1, x2, x3 = map(_array, counter)
    for _ in range(10):
        product0, product1 = x0 * MULTIPLIERS[0], x2 * MULTIPLIERS[1]
        # The shift rounds down, so adding back the 2^32 that the multiplier lacks is exact.
        high0, high1 = (product0 >> 32) + x0, (product1 >> 32) + x2
        x0, x1, x2, x3 = high1 ^ x1 ^ key0, product1 & _MASK, high0 ^ x3 ^ key1, product0 & _MASK
        key0, key1 = (key0 + KEY_STEPS[0]) & _MASK, (key1 + KEY_STEPS[1]) & _MASK
    return tuple(map(torch.as_tensor, (x0, x1, x2, x3)))


def _array(word: Any) -> Any:
    """A CPU tensor's memory as numpy sees it: the same integers with a third of torch's cost for each operation."""
    return word.numpy() if isinstance(word, torch.Tensor) and word.device.type == "cpu" else word


def gumbel(seed: int, position: int, token_ids: torch.Tensor, choice: int) -> torch.Tensor:
    """Gumbel noise, float32, of each token id (int64) at a position of a request's `choice`-th reply."""
    return gumbel_of_words(philox(seed, position, token_ids, choice, 0)[0])


def gumbel_of_words(words: torch.Tensor) -> torch.Tensor:
    """Gumbel noise, float32, from random 32-bit words in int64."""
    return -log_float32(_exponential(words))


def log_float32(x: torch.Tensor) -> torch.Tensor:
    """Natural logarithm of positive normal float32 numbers, by the shared polynomial."""
    bits = x.view(torch.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    mantissa = (bits - (exponent << 23)).view(torch.float32)  # from sqrt(1/2) to sqrt(2)
    f = mantissa - 1.0
    square, tail = _log_parts(f)
    scale = exponent.to(torch.float32)
    tail = tail + scale * LN2_LOW
    tail = tail - square * 0.5
    return (f + tail) + scale * LN2_HIGH


def _exponential(words: torch.Tensor) -> torch.Tensor:
    """-log(1 - v). For v under 0.25 the series takes -v itself: 1 - v would drop the low bits of v."""
    v = words.to(torch.float32) * 2.0**-32 + 2.0**-33
    v = torch.clamp(v, max=1.0 - 2.0**-24)
    f = -v
    square, tail = _log_parts(f)
    series = f + (tail - square * 0.5)
    return -torch.where(v < 0.25, series, log_float32(1.0 - v))


def _log_parts(f: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f^2 and f^3 P(f)."""
    polynomial = torch.full_like(f, LOG_POLYNOMIAL[0])
    for coefficient in LOG_POLYNOMIAL[1:]:
        polynomial = polynomial * f + coefficient
    square = f * f
    return square, (f * square) * polynomial
