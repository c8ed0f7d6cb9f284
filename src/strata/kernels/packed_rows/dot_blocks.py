"""Blocks of every lane: loaded, multiplied with rows of activations by dp4a and added; and the tree that adds lanes.

Knows words, scales and minima as decode.py gives them; knows no loop.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.instructions import dp4a
from strata.kernels.packed_rows.sums import MAGIC, float_of_sum, minus, open_record, sub_block_of


@triton.jit
def add_lanes(acc):
    """acc [8, outputs] -> [outputs]: lanes +4, then +2, then +1."""
    OUTPUTS: tl.constexpr = acc.shape[1]
    a, b = tl.split(tl.permute(tl.reshape(tl.trans(acc), (OUTPUTS, 2, 4)), (0, 2, 1)))
    a, b = tl.split(tl.permute(tl.reshape(a + b, (OUTPUTS, 2, 2)), (0, 2, 1)))
    a, b = tl.split(a + b)
    return a + b


@triton.jit
def dot_half(words, q, HALF: tl.constexpr, total):
    """total + the exact sum over 16 columns; q: the four words of those columns."""
    for word in tl.static_range(4):
        total = dp4a(words[4 * HALF + word], tl.broadcast_to(q[word], total.shape), total)
    return total


@triton.jit
def halves_of(x):
    """[2 * n, outputs] -> its upper and its lower half [n, outputs]."""
    HALF: tl.constexpr = x.shape[0] // 2
    return tl.split(tl.permute(tl.reshape(x, (2, HALF, x.shape[1])), (1, 2, 0)))


@triton.jit
def parts_of(x, SIDE: tl.constexpr):
    """[8 * SIDE, outputs] -> a tuple of SIDE tensors [8, outputs], from the top."""
    a, b = halves_of(x)
    if SIDE == 2:
        parts = (a, b)
    else:
        tl.static_assert(SIDE == 4)
        c, d = halves_of(a)
        e, f = halves_of(b)
        parts = (c, d, e, f)
    return parts


@triton.jit
def load_blocks(
    arrays, table, tile, row, block, blocks,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    """Words, scales and minima of the blocks `block` [n, 1] of a tile's rows `row` [1, outputs]: tuples.

    The last block stands for one behind the end.
    """
    codes, weight_scales, super_scales, mins, super_mins = arrays
    block = tl.minimum(block, blocks - 1)
    words = CODE(codes, tile * blocks + block, row, table)
    at_super = (tile * (blocks // 8) + block // 8) * 16 + row
    scales = ()
    minima = ()
    for half in tl.static_range(HALVES):
        at = sub_block_of(tile, blocks, block, half, SUB_BLOCK) * 16 + row
        scales += (SCALE(weight_scales, at, super_scales, at_super),)
        if HAS_MIN:
            minima += (MIN(mins, at, super_mins, at_super),)
    return words, scales, minima


@triton.jit
def load_rows(activations, at_rows, block, blocks):
    """The blocks `block` [n, 1] or [n, outputs] of each row of the tuple `at_rows`: four pairs of words, d, two sums.

    Behind the last block comes that one with d = 0. Its product is a zero, which changes no accumulator, because none
    is ever -0 (lanes start at +0, and a product of a sum and a factor that are not zero does not underflow).
    """
    q, records, row_step, block_step = activations
    exists = block < blocks
    block = tl.minimum(block, blocks - 1)
    loaded = ()
    for r in tl.static_range(len(at_rows)):
        at = at_rows[r] * row_step + block * block_step
        dx, low, high = open_record(tl.load(records + at))
        loaded += ((load_pairs(q + at * 4), tl.where(exists, dx, 0.0), low, high),)
    return loaded


@triton.jit
def load_pairs(q):
    """Four pairs of words, one after another."""
    return tl.load(q), tl.load(q + 1), tl.load(q + 2), tl.load(q + 3)


@triton.jit
def terms_of(factor, value, SIDE: tl.constexpr):
    """factor, value float32 [8 * SIDE, outputs] -> a tuple of SIDE pairs [8, outputs], from the top.

    They move between threads as one word: alone, the compiler would move the factor's scale as soon as it is loaded,
    and loads that follow would wait for it.
    """
    if SIDE == 1:
        terms = ((factor, value),)
    else:
        bits = factor.to(tl.int32, bitcast=True).to(tl.int64) << 32
        parts = parts_of(bits | (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF), SIDE)
        terms = ()
        for part in tl.static_range(SIDE):
            high, low = (parts[part] >> 32).to(tl.int32), parts[part].to(tl.int32)
            terms += ((high.to(tl.float32, bitcast=True), low.to(tl.float32, bitcast=True)),)
    return terms


@triton.jit
def add_block(
    acc, words, scales, minima, q, dx, low, high, offset,
    IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """One block of every lane for one row, whose words are at `q`."""
    weights, row = (words, scales, minima), (load_pairs(q), dx, low, high)
    return add_blocks(acc, weights, row, offset, IS_LINEAR, HAS_MIN, HALVES, 1)


@triton.jit
def add_blocks(
    acc, weights, activations, offset,
    IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, HALVES: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """SIDE blocks of every lane, in their order, for one row: acc [8, outputs].

    weights, activations: what `load_blocks` gave, [8 * SIDE, outputs] each, and `load_rows` for the row.
    """
    words, scales, minima = weights
    pairs, dx, low, high = activations
    q_sums = (low, high) if HALVES == 2 else (low + high,)
    q_low = ()
    q_high = ()
    for pair in tl.static_range(4):
        q_low += (pairs[pair].to(tl.int32),)
        q_high += ((pairs[pair] >> 32).to(tl.int32),)
    terms = ()
    for half in tl.static_range(HALVES):
        start = q_sums[half] * offset + MAGIC if IS_LINEAR else q_sums[half] * 0 + MAGIC
        start = tl.broadcast_to(start, scales[half].shape)
        if HALVES == 1:
            total = dot_half(words, q_high, 1, dot_half(words, q_low, 0, start))
        else:
            total = dot_half(words, q_low if half == 0 else q_high, half, start)
        terms += (terms_of(scales[half] * dx, float_of_sum(total), SIDE),)
    if HAS_MIN:
        for half in tl.static_range(HALVES):
            sums = tl.broadcast_to(q_sums[half].to(tl.float32), minima[half].shape)
            terms += (terms_of(minima[half] * minus(dx), sums, SIDE),)
    for part in tl.static_range(SIDE):
        for term in tl.static_range(len(terms)):
            acc = tl.fma(terms[term][part][0], terms[term][part][1], acc)
    return acc
