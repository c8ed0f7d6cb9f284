"""Choosing scales: what the quantizers of the formats share. Knows no bytes and no block layout.

A scale is tried at several sizes around the one that lets the largest value fit; each is improved by least squares for
the codes that it gave, and the least error wins. Blocks lie side by side while they are tried, [weights, blocks], some
thousands of weights at a time: a step is then one pass over numbers in the cache.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Bytes = NDArray[np.uint8]
Choose = Callable[[Floats], Floats]  # values divided by their scale -> the nearest codes' values
LARGEST_HALF = np.float32(65504)
_TILE_BLOCKS = 2000  # fits the cache; with a power of two the weights of a block would all fall on the same lines of it
_SHRINKS = (1.0, 0.93)  # of the range that codes cover; with a third one Q4_1's error is 0.0732 instead of 0.0734
_PRODUCT = "kn,kn->n"  # of two [weights, blocks]: a sum for each block, without a temporary


def to_half(values: Floats) -> Halves:
    """The nearest finite f16."""
    return values.clip(-LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def as_half(values: Floats) -> Floats:
    """Float32 that an f16 holds exactly."""
    return to_half(values).astype(np.float32)


def divide(values: Floats, by: Floats) -> Floats:
    """values / by, 0 where `by` is 0 or so small that the quotient is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = np.divide(values, by, out=np.zeros(np.broadcast(values, by).shape, np.float32), where=by != 0)
    return np.nan_to_num(quotient, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def fit_signed(values: Floats, low: int, high: int, store: Choose = as_half) -> tuple[Floats, NDArray[np.int8]]:
    """values [n, k] ~ scale * code with codes from low to high -> (scales [n, 1] after `store`, codes [n, k])."""
    scales, codes = np.empty((len(values), 1), np.float32), np.empty(values.shape, np.int8)
    for rows, tile in _tiles(values):
        found = store(_signed_scales(tile, low, high))
        scales[rows, 0] = found
        codes[rows] = _nearest(tile, _inverse(found), low, high, tile).astype(np.int8).T
    return scales, codes


def fit_affine(values: Floats, high: int, low_at_most: float = np.inf) -> tuple[Floats, Floats]:
    """values [n, k] ~ scale * code + low with codes 0 .. high and scale >= 0 -> (scales [n, 1], lows [n, 1])."""
    scales, lows = np.empty((len(values), 1), np.float32), np.empty((len(values), 1), np.float32)
    for rows, tile in _tiles(values):
        scales[rows, 0], lows[rows, 0] = _affine_scales(tile, high, low_at_most)
    return scales, lows


def fit_affine_codes(values: Floats, high: int) -> tuple[Floats, Floats, Bytes]:
    """fit_affine with the scales and lows as f16 holds them, and the nearest codes for these [n, k]."""
    scales, lows = np.empty((len(values), 1), np.float32), np.empty((len(values), 1), np.float32)
    codes = np.empty(values.shape, np.uint8)
    for rows, tile in _tiles(values):
        mean = tile.mean(axis=0)
        scale, low = (as_half(each) for each in _affine_scales(tile, high, np.inf))
        tile -= low - mean
        scales[rows, 0], lows[rows, 0] = scale, low
        codes[rows] = _nearest(tile, _inverse(scale), 0, high, tile).astype(np.uint8).T
    return scales, lows, codes


def affine_codes(values: Floats, scale: Floats, low: Floats, high: int) -> Bytes:
    """The nearest codes 0 .. high [n, k] for a scale and a low end, both [n, 1]."""
    codes = np.empty(values.shape, np.uint8)
    for rows, tile in _tiles(values):
        tile -= low[rows, 0]
        codes[rows] = _nearest(tile, _inverse(scale[rows, 0]), 0, high, tile).astype(np.uint8).T
    return codes


def signed_codes(values: Floats, scale: Floats, low: int, high: int) -> NDArray[np.int8]:
    """The nearest codes low .. high [n, k] for a scale [n, 1]."""
    codes = np.empty(values.shape, np.int8)
    for rows, tile in _tiles(values):
        codes[rows] = _nearest(tile, _inverse(scale[rows, 0]), low, high, tile).astype(np.int8).T
    return codes


def join_nibbles(codes: Bytes) -> Bytes:
    """Codes 0 .. 15, [n, 32] -> [n, 16] bytes: the first sixteen in the low halves, the others in the high halves."""
    words = np.ascontiguousarray(codes).view(np.uint64)
    joined = np.empty((len(words), 2), np.uint64)
    for column in (0, 1):
        np.bitwise_or(words[:, column], words[:, column + 2] << np.uint64(4), out=joined[:, column])
    return joined.view(np.uint8)


def _tiles(values: Floats) -> Iterator[tuple[slice, Floats]]:
    """(some rows, a copy of them as [k, rows])."""
    for begin in range(0, len(values), _TILE_BLOCKS):
        rows = slice(begin, min(begin + _TILE_BLOCKS, len(values)))
        yield rows, values[rows].T.copy()


def _nearest(tile: Floats, inverse: Floats, low: int, high: int, out: Floats) -> Floats:
    """Codes low .. high nearest to tile * inverse, into `out`."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(tile, inverse, out=out)
        np.rint(out, out=out)
        return np.clip(out, low, high, out=out)


def _inverse(scale: Floats) -> Floats:
    """1 / scale, 0 where that is not finite: such a block's codes are then 0 or the nearest to it."""
    return divide(np.ones_like(scale), scale)


def _signed_scales(tile: Floats, low: int, high: int) -> Floats:
    """The best scale of each block, negative where that turns the block round. tile [k, n] -> [n]."""
    # What a scale takes off the sum of squares; beyond 1e19 it is not finite, and never the best.
    best, best_gain = np.zeros(tile.shape[1], np.float32), np.zeros(tile.shape[1], np.float32)
    work = np.empty_like(tile)
    for inverse in _tried_inverses(tile, low, high):
        codes = _nearest(tile, inverse, low, high, work)
        with np.errstate(over="ignore", invalid="ignore"):
            product, square = np.einsum(_PRODUCT, tile, codes), np.einsum(_PRODUCT, codes, codes)
            scale = product / np.maximum(square, np.float32(1))  # a sum of squares of whole numbers
            gain = scale * product
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(best, scale, where=better)
    return best


def _tried_inverses(tile: Floats, low: int, high: int) -> list[Floats]:
    """Inverse scales [n] to begin from.

    Relative error of normal values with all of these against twice to four times as many: Q4_0 0.08146 against
    0.08126, Q2_0 0.3522 against 0.3517.
    """
    if high <= 2:  # so few codes that the largest value says little
        with np.errstate(over="ignore"):
            typical = _inverse(np.sqrt(np.einsum(_PRODUCT, tile, tile) / np.float32(len(tile))))
        return [typical * np.float32(share) for share in (1.0, 1 / 1.3, -1.0, -1 / 1.3)]
    most, least = tile.max(axis=0), tile.min(axis=0)
    inverse_peak = _inverse(np.where(-least > most, least, most))
    # The largest value stands at the lower end, which reaches farther, or a little beyond or before it; with many codes
    # at either end.
    ends = (low, low - 0.6, low + 0.6) if high < 16 else (low, low + 0.5, high, high + 0.5)
    return [inverse_peak * np.float32(end) for end in ends]


def _affine_scales(tile: Floats, high: int, low_at_most: float) -> tuple[Floats, Floats]:
    """The best scale and low end of each block. tile [k, n], changed -> two times [n]."""
    count = np.float32(len(tile))
    mean = tile.mean(axis=0)
    tile -= mean  # sums of squares of what is far from 0 would lose the differences
    ceiling = np.float32(low_at_most) - mean
    lowest = np.minimum(tile.min(axis=0), ceiling)
    width = np.maximum(tile.max(axis=0) - lowest, 0)
    best, best_low, best_gain = np.zeros_like(width), np.minimum(lowest, ceiling), np.full_like(width, -np.inf)
    work = np.empty_like(tile)
    for shrink in _SHRINKS:
        scale = width * np.float32(shrink / high)
        low = np.minimum(lowest + width * np.float32((1 - shrink) / 2), ceiling)
        codes = _nearest(np.subtract(tile, low, out=work), _inverse(scale), 0, high, work)
        with np.errstate(over="ignore", invalid="ignore"):
            product, square = np.einsum(_PRODUCT, tile, codes), np.einsum(_PRODUCT, codes, codes)
            total = codes.sum(axis=0)
            # The values sum to 0, so their products with codes and with codes less their mean are the same.
            spread = np.maximum(square - total * total / count, np.float32(0.5))
            scale = np.maximum(product / spread, np.float32(0))
            low = np.minimum(-scale * total / count, ceiling)
            gain = scale * (2 * product - scale * square - 2 * low * total) - count * low * low
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(best, scale, where=better)
        np.copyto(best_low, low, where=better)
    return best, best_low + mean


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
