"""The last token that top-k or top-p keeps, by histograms of magnitudes: coarse, finer, single bits.

Knows magnitudes (order.py) and integers; no launch. Tokens farther than 32 from the largest logit are in no histogram:
their weight is 0, and no noise lets them win.

    coarse bins     0 .. 999       magnitudes below 0.25, 2^20 bit patterns each
                    1000 .. 2015   the rest up to 32 in steps of 1/32, so at most 2^20 bit patterns each
    fine bins       1024 of 1024 bit patterns each inside of one coarse bin, then each of those 1024

A search is four words: the bin's first magnitude (NOWHERE if all sums stay below what is needed), the sum that is
needed, the sum in front of the bin, and the weights in front of it.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.sampler import buffers
from strata.kernels.sampler.draws import weight_of
from strata.kernels.sampler.order import TOP_K, has_top_k, has_top_p, magnitude_of, top_p_of

COARSE_BINS, FINE_BINS = tl.constexpr(buffers.COARSE_BINS), tl.constexpr(buffers.FINE_BINS)
BINS_A_ROW, SEARCH_WORDS = tl.constexpr(buffers.BINS_A_ROW), tl.constexpr(buffers.SEARCH_WORDS)
TOP_K_FILTER, TOP_P_FILTER = tl.constexpr(0), tl.constexpr(1)

BITS_OF_QUARTER = tl.constexpr(0x3E800000)
BITS_OF_32 = tl.constexpr(0x42000000)
FIRST_STEP = tl.constexpr(1000)  # BITS_OF_QUARTER >> 20
STEP_OFFSET = tl.constexpr(1000 - 8)  # a quarter is eight steps of 1/32
NOWHERE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def coarse_bin(magnitude):
    """Of magnitudes below BITS_OF_32."""
    value = tl.minimum(magnitude, BITS_OF_32).to(tl.float32, bitcast=True)
    return tl.where(magnitude < BITS_OF_QUARTER, magnitude >> 20, (value * 32.0).to(tl.int32) + STEP_OFFSET)


@triton.jit
def coarse_start(bin):
    """The first magnitude of a coarse bin."""
    steps = ((bin - STEP_OFFSET).to(tl.float32) * 0.03125).to(tl.int32, bitcast=True)
    return tl.where(bin < FIRST_STEP, bin << 20, steps)


@triton.jit
def add_coarse(counts, weights, distance, uses_counts, uses_weights, BLOCK: tl.constexpr):
    """Count a block of distances in a row's coarse bins."""
    magnitude = magnitude_of(distance)
    bin = coarse_bin(magnitude)
    is_near = magnitude < BITS_OF_32
    if uses_counts:
        tl.atomic_add(counts + bin, tl.full((BLOCK,), 1, tl.int32), mask=is_near, sem="relaxed")
    if uses_weights:
        weight = weight_of(distance)
        tl.atomic_add(weights + bin, weight.to(tl.int64), mask=is_near & (weight > 0), sem="relaxed")


@triton.jit
def add_fine(
    counts, weights, distance, start, end, SHIFT: tl.constexpr, uses_counts, uses_weights, BLOCK: tl.constexpr
):
    """Count those of a block whose magnitudes lie from `start` to `end` - 1, in bins of 2^SHIFT bit patterns."""
    magnitude = magnitude_of(distance)
    is_inside = (magnitude >= start) & (magnitude < end)
    bin = tl.where(is_inside, (magnitude - start) >> SHIFT, 0)
    if uses_counts:
        tl.atomic_add(counts + bin, tl.full((BLOCK,), 1, tl.int32), mask=is_inside, sem="relaxed")
    if uses_weights:
        tl.atomic_add(weights + bin, weight_of(distance).to(tl.int64), mask=is_inside, sem="relaxed")


@triton.jit
def find(table, before, needed, BINS: tl.constexpr):
    """How many bins go by until the sum is reached, and the sum in front of the next."""
    index = tl.arange(0, BINS)
    values = tl.load(table + index).to(tl.int64)
    bin = tl.sum((before + tl.cumsum(values, axis=0) < needed).to(tl.int32), axis=0)
    return bin, before + tl.sum(tl.where(index < bin, values, 0), axis=0)


@triton.jit
def sum_below(table, bin, BINS: tl.constexpr):
    """The sum of the first bins."""
    index = tl.arange(0, BINS)
    return tl.sum(tl.load(table + index, mask=index < bin, other=0).to(tl.int64), axis=0)


@triton.jit
def fine_place(FILTER: tl.constexpr, LEVEL: tl.constexpr):
    """Where in a row the fine bins of a filter begin; LEVEL 0 or 1."""
    return COARSE_BINS + (FILTER * 2 + LEVEL) * FINE_BINS


@triton.jit
def search_place(FILTER: tl.constexpr, LEVEL: tl.constexpr):
    """Where in a row the words of a search begin."""
    return (FILTER * 2 + LEVEL) * SEARCH_WORDS


@triton.jit
def needed_sum(words, counts, weights, searches, FILTER: tl.constexpr, VOCABULARY: tl.constexpr):
    """What a filter's sum must reach: k tokens, or p times the weights that top-k left, rounded up."""
    if FILTER == TOP_K_FILTER:
        needed = tl.load(words + TOP_K).to(tl.int64)
    else:
        total = sum_below(weights, COARSE_BINS, COARSE_BINS)
        if has_top_k(words, VOCABULARY):
            total = weights_in_top_k(counts, weights, searches, total)
        target = top_p_of(words) * total.to(tl.float64)
        needed = target.to(tl.int64)
        needed += (needed.to(tl.float64) < target).to(tl.int64)
    return needed


@triton.jit
def weights_in_top_k(counts, weights, searches, total):
    """The weights of the tokens that top-k keeps; `total` if it keeps all."""
    place = fine_place(TOP_K_FILTER, 1)
    last = searches + search_place(TOP_K_FILTER, 1)
    start, needed = tl.load(last), tl.load(last + 1)
    bin, before = find(counts + place, tl.load(last + 2), needed, FINE_BINS)
    weight = weight_of(-(start + bin).to(tl.int32).to(tl.float32, bitcast=True)).to(tl.int64)
    found = tl.load(last + 3) + sum_below(weights + place, bin, FINE_BINS) + (needed - before) * weight
    return tl.where(start == NOWHERE, total, found)


@triton.jit
def last_kept(words, counts, weights, searches):
    """Of a row with a filter, when all histograms stand: the last magnitude kept, how many of it, and of how many.

    Where both filters are set, top-p keeps no more than top-k.
    """
    if has_top_p(words):
        magnitude, needed, before, found = last_bin(weights, searches, TOP_P_FILTER)
        weight = weight_of(-magnitude.to(tl.float32, bitcast=True)).to(tl.int64)
        room, equal = (needed - before + weight - 1) // weight, found // weight
    else:
        magnitude, needed, before, equal = last_bin(counts, searches, TOP_K_FILTER)
        room = needed - before
    return magnitude, room, equal


@triton.jit
def last_bin(table, searches, FILTER: tl.constexpr):
    """The last search of a filter: magnitude, sum needed, sum in front of it, sum of its own bin."""
    place = table + fine_place(FILTER, 1)
    last = searches + search_place(FILTER, 1)
    start, needed = tl.load(last), tl.load(last + 1)
    bin, before = find(place, tl.load(last + 2), needed, FINE_BINS)
    is_found = start != NOWHERE
    magnitude = tl.where(is_found, start + bin, NOWHERE).to(tl.int32)
    return magnitude, needed, before, tl.load(place + bin, mask=is_found, other=0).to(tl.int64)
