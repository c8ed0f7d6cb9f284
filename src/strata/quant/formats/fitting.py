"""Choosing scales: what the quantizers of the formats share. Knows no bytes and no block layout.

A scale is tried at several sizes around the one that lets the largest value fit; each is also improved by least
squares for the codes that it gave; codes are taken for the scale as it will be stored, and the least error wins.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Choose = Callable[[Floats], Floats]  # values divided by their scale -> the nearest codes' values
LARGEST_HALF = np.float32(65504)


def to_half(values: Floats) -> Halves:
    """The nearest finite f16."""
    return values.clip(-LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def as_half(values: Floats) -> Floats:
    """Float32 that an f16 holds exactly."""
    return to_half(values).astype(np.float32)


def divide(values: Floats, by: Floats) -> Floats:
    """values / by, 0 where `by` is 0 or so small that the quotient is not finite."""
    with np.errstate(over="ignore"):
        quotient = np.divide(values, by, out=np.zeros(np.broadcast(values, by).shape, np.float32), where=by != 0)
    return np.nan_to_num(quotient, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def fit_signed(values: Floats, low: int, high: int, store: Choose = as_half) -> tuple[Floats, Floats]:
    """values [n, k] ~ scale * code with codes from low to high -> (scales [n, 1] after `store`, codes [n, k])."""
    peak_at = np.abs(values).argmax(axis=1)[:, None]
    peak = np.take_along_axis(values, peak_at, axis=1)
    # The largest value may stand at either end of the codes; the scale's sign turns the block round.
    tried = (peak / np.float32(end + step) for end in {low, high} for step in _steps(max(-low, high)) if end + step)
    return best_scale(values, tried, lambda scaled: np.rint(scaled).clip(low, high), store)


def _steps(span: int) -> tuple[float, ...]:
    if span <= 2:
        return (-1.5, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)
    return (-0.6, 0.0, 0.6) if span <= 16 else (0.0, 0.5)


def best_scale(
    values: Floats, tried: Iterable[Floats], choose: Choose, store: Choose = as_half
) -> tuple[Floats, Floats]:
    """The best of the scales `tried` ([n, 1] each) and their improvements -> (scales [n, 1], codes' values [n, k])."""
    best_error = np.full((len(values), 1), np.inf, np.float32)
    best, codes = np.zeros((len(values), 1), np.float32), np.zeros_like(values)
    for first in tried:
        scale = store(first)
        for _ in range(2):
            found = choose(divide(values, scale))
            error = _squares(values - found * scale)
            better = error < best_error
            best_error = np.where(better, error, best_error)
            best, codes = np.where(better, scale, best), np.where(better, found, codes)
            scale = store(divide((values * found).sum(axis=1, keepdims=True), _squares(found)))
    return best, codes


def _squares(values: Floats) -> Floats:
    with np.errstate(over="ignore"):  # beyond 1e19 an error counts as infinite
        return np.square(values).sum(axis=1, keepdims=True)


def fit_affine(values: Floats, high: int, low_at_most: float = np.inf) -> tuple[Floats, Floats]:
    """values [n, k] ~ scale * code + low with codes 0 .. high and scale >= 0 -> (scales [n, 1], lows [n, 1])."""
    lowest = np.minimum(values.min(axis=1, keepdims=True), low_at_most)
    width = np.maximum(values.max(axis=1, keepdims=True) - lowest, 0)
    best_error = np.full_like(lowest, np.inf)
    best_scale_found, best_low = np.zeros_like(lowest), lowest
    for shrink in (1.0, 0.94, 0.88):
        scale, low = width * np.float32(shrink / high), lowest + width * np.float32((1 - shrink) / 2)
        low = np.minimum(low, low_at_most)
        for _ in range(2):
            codes = affine_codes(values, scale, low, high)
            error = _squares(values - codes * scale - low)
            better = error < best_error
            best_error = np.where(better, error, best_error)
            best_scale_found, best_low = np.where(better, scale, best_scale_found), np.where(better, low, best_low)
            scale, low = _least_squares(values, codes, low_at_most)
    return best_scale_found, best_low


def affine_codes(values: Floats, scale: Floats, low: Floats, high: int) -> Floats:
    """The nearest codes 0 .. high for a scale and a low end."""
    return np.rint(divide(values - low, scale)).clip(0, high)


def _least_squares(values: Floats, codes: Floats, low_at_most: float) -> tuple[Floats, Floats]:
    mean_value, mean_code = values.mean(axis=1, keepdims=True), codes.mean(axis=1, keepdims=True)
    spread = _squares(codes - mean_code)
    scale = divide(((codes - mean_code) * (values - mean_value)).sum(axis=1, keepdims=True), spread)
    low = np.minimum(mean_value - scale * mean_code, low_at_most)
    return np.maximum(scale, 0), low.astype(np.float32)


def fit_levels(
    values: Floats, levels: tuple[int, ...], tried: Iterable[Floats], store: Choose = as_half
) -> tuple[Floats, NDArray[np.uint8]]:
    """values [n, k] ~ scale * level with rising `levels` -> (scales [n, 1], numbers of the levels [n, k])."""
    # The nearest level by a table over small steps: a search among the middles takes five times as long.
    steps = 4 if levels[-1] > 100 else 64
    ends = levels[0] * steps, levels[-1] * steps
    number = np.abs(np.arange(ends[0], ends[1] + 1)[:, None] / steps - np.array(levels)).argmin(axis=1).astype(np.uint8)
    nearest = np.array(levels, np.float32)[number]

    def place(scaled: Floats) -> NDArray[np.int32]:
        return np.rint(scaled * np.float32(steps)).clip(*ends).astype(np.int32) - ends[0]

    scale, found = best_scale(values, tried, lambda scaled: nearest[place(scaled)], store)
    return scale, number[place(found)]
