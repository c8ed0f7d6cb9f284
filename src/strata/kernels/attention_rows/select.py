"""The best of a row's scored blocks on a GPU, by one program. Knows scores and their order; knows no launch.

The threshold is sought by counting: keys that order as the scores do are held in registers, and each turn counts how
many are above three thresholds.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

APART = tl.constexpr(1024)  # eight warps of threads that hold four keys side by side


@triton.jit
def keys_of(scores, first, complete, CHUNK: tl.constexpr):
    """int32 that order as the scores first .. first + CHUNK do, NaN above all; -1 beyond `complete`, up to 2^31 - 2.

    Other programs have just written the scores: they are read past the multiprocessor's own cache.
    """
    block = first + tl.arange(0, CHUNK)
    score = tl.load(scores + block, mask=block < complete, other=0.0, cache_modifier=".cg")
    return tl.where(block < complete, tl.minimum(score.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0x7FFFFFFE), -1)


@triton.jit
def count_in_threads(keys, threshold, CHUNK: tl.constexpr):
    """int64: how many of the keys that lie APART from each other, so in one thread, are above a threshold.

    Both are from -1 to 2^31 - 2, so the sign of their difference tells: a subtraction and a shifted addition a key.
    """
    LANES: tl.constexpr = CHUNK if CHUNK < APART else APART
    sign = ((threshold - keys) >> 31) & 1
    return tl.sum(tl.reshape(sign, (CHUNK // LANES, LANES)), axis=0).to(tl.int64)


@triton.jit
def above_each(keys, first, second, third, CHUNK: tl.constexpr):
    """How many keys are above each of three thresholds: the counts times 1, 2^21 and 2^42."""
    counts = count_in_threads(keys, first, CHUNK) + (count_in_threads(keys, second, CHUNK) << 21)
    return counts + (count_in_threads(keys, third, CHUNK) << 42)


@triton.jit
def count_above(held, scores, complete, first, second, third, CHUNK: tl.constexpr, IS_ONE_CHUNK: tl.constexpr):
    """How many keys are above each of three thresholds; `held` are those of the first chunk."""
    counts = above_each(held, first, second, third, CHUNK)
    if not IS_ONE_CHUNK:
        for begin in tl.range(CHUNK, complete, CHUNK):
            counts += above_each(keys_of(scores, begin, complete, CHUNK), first, second, third, CHUNK)
    total = tl.sum(counts, axis=0)  # one sum for three: each is a wait for all warps
    return (total & 0x1FFFFF).to(tl.int32), (total >> 21 & 0x1FFFFF).to(tl.int32), (total >> 42).to(tl.int32)


@triton.jit
def key_range(held, scores, complete, CHUNK: tl.constexpr, IS_ONE_CHUNK: tl.constexpr):
    """The least and the greatest key."""
    lowest, highest = tl.where(held < 0, 0x7FFFFFFF, held), held
    if not IS_ONE_CHUNK:
        for begin in tl.range(CHUNK, complete, CHUNK):
            keys = keys_of(scores, begin, complete, CHUNK)
            lowest, highest = tl.minimum(lowest, tl.where(keys < 0, 0x7FFFFFFF, keys)), tl.maximum(highest, keys)
    return tl.min(lowest, axis=0), tl.max(highest, axis=0)


@triton.jit
def search(held, scores, complete, TOP: tl.constexpr, CHUNK: tl.constexpr, IS_ONE_CHUNK: tl.constexpr):
    """(low, high, room) int32: keys above `high` are chosen, and the first `room` of those above `low` up to `high`.

    At least TOP keys are above `low` and fewer above `high`, from the start on; the search ends where no key lies
    between, or where exactly TOP are above `low`. Three thresholds a turn: turns wait for sums, not for compares.
    """
    lowest, highest = key_range(held, scores, complete, CHUNK, IS_ONE_CHUNK)
    low, high = lowest.to(tl.int64) - 1, highest.to(tl.int64)  # 64 bits: NaN is 2^31 - 1 above -1, and 3 are added
    above_low, above_high = complete, 0
    while (above_low != TOP) & (high - low > 1):
        step = (high - low + 3) // 4
        first, second, third = low + step, tl.minimum(low + 2 * step, high), tl.minimum(low + 3 * step, high)
        reached, further, furthest = count_above(
            held, scores, complete, first.to(tl.int32), second.to(tl.int32), third.to(tl.int32), CHUNK, IS_ONE_CHUNK
        )
        low = tl.where(furthest >= TOP, third, tl.where(further >= TOP, second, tl.where(reached >= TOP, first, low)))
        above_low = tl.where(
            furthest >= TOP, furthest, tl.where(further >= TOP, further, tl.where(reached >= TOP, reached, above_low))
        )
        high = tl.where(reached < TOP, first, tl.where(further < TOP, second, tl.where(furthest < TOP, third, high)))
        above_high = tl.where(
            reached < TOP, reached, tl.where(further < TOP, further, tl.where(furthest < TOP, furthest, above_high))
        )
    return low.to(tl.int32), high.to(tl.int32), TOP - above_high


@triton.jit
def write_chosen(chosen, keys, block, low, high, room, before):
    """Write those of some rising blocks that are chosen, by their keys.

    `before`: how many keys up to here lie between low and high, + 2^20 above high. Returns what each key adds to it.
    """
    is_above, is_between = keys > high, (keys > low) & (keys <= high)
    counted = (is_above.to(tl.int32) << 20) + is_between.to(tl.int32)
    up_to = before + tl.cumsum(counted, axis=0)
    between = up_to & 0xFFFFF
    place = (up_to >> 20) + tl.minimum(between, room) - 1
    tl.store(chosen + place, block, mask=is_above | (is_between & (between <= room)))
    return counted


@triton.jit
def select_best(scores, chosen, complete, TOP: tl.constexpr, CHUNK: tl.constexpr, IS_ONE_CHUNK: tl.constexpr):
    """scores float32 [complete] of a row -> chosen int32 [TOP], rising, the lower block first among equals.

    At least TOP + 1 blocks are complete and each key is at least 0, so TOP are always found.
    """
    held = keys_of(scores, 0, complete, CHUNK)
    low, high, room = search(held, scores, complete, TOP, CHUNK, IS_ONE_CHUNK)
    number = tl.arange(0, CHUNK)
    counted = write_chosen(chosen, held, number, low, high, room, 0)
    if not IS_ONE_CHUNK:
        before = tl.sum(counted, axis=0)
        for begin in tl.range(CHUNK, complete, CHUNK):
            keys = keys_of(scores, begin, complete, CHUNK)
            before += tl.sum(write_chosen(chosen, keys, begin + number, low, high, room, before), axis=0)
