"""The blocks that rows of a window attend to, on a GPU: one launch scores them, one selects the best of each row.

Knows scores and their order; knows no key of attention itself. A row that sees every block leaves both at once.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_rows.arguments import (
    AttentionCells,
    AttentionRowsShape,
    AttentionWork,
    BlockChoice,
    IndexerRowsShape,
)
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.window_rows import WindowRows

TILE_BLOCKS = 32  # scored at a time: 7,500 blocks are 235 programs
MOST_PROGRAMS = 1024  # of a row: slots of 262,144 cells have 2,048 tiles, most of them far behind a row's position
CHUNK_BLOCKS = 16_384  # of a row's scores held in registers while its threshold is sought: 16 a thread


@triton.jit
def scores_kernel(
    query, pooled, slots, positions, scores, blocks, root,
    HEADS: tl.constexpr, DIM: tl.constexpr, RATIO: tl.constexpr, DENSE_POSITIONS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """query [rows, HEADS, DIM], pooled [slots, blocks, DIM] -> scores [rows, blocks].

    grid (programs, rows): a row's programs take its tiles in turn.
    """
    begin_dependent()
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    position = tl.load(positions + row)
    complete = tl.where((slot >= 0) & (position >= DENSE_POSITIONS), (position + 1) // RATIO, 0)
    d = tl.arange(0, DIM)
    for first in tl.range(tl.program_id(0) * TILE, complete, tl.num_programs(0) * TILE):
        block = first + tl.arange(0, TILE)
        at = (slot * blocks + block)[:, None] * DIM + d[None, :]
        key = tl.load(pooled + at, mask=(block < complete)[:, None], other=0.0).to(tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        for head in tl.static_range(HEADS):
            product = tl.sum(key * tl.load(query + (row * HEADS + head) * DIM + d)[None, :], axis=1)
            total += tl.where(product > 0.0, product, 0.0)
        score = tl.div_rn(total, tl.zeros((TILE,), tl.float32) + root)
        tl.store(scores + row * blocks + block, score, mask=block < complete)


@triton.jit
def keys_of(scores, first, complete, CHUNK: tl.constexpr):
    """int32 that order as the scores first .. first + CHUNK do, NaN above all; -1 beyond `complete`."""
    block = first + tl.arange(0, CHUNK)
    score = tl.load(scores + block, mask=block < complete, other=0.0)
    return tl.where(block < complete, score.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)


@triton.jit
def above_each(keys, first, second, third):
    """Which of three thresholds each key is above: 1 + 2^10 + 2^20."""
    upper = (keys > second).to(tl.int32) + ((keys > third).to(tl.int32) << 10)
    return (keys > first).to(tl.int32) + (upper << 10)


@triton.jit
def count_above(held, scores, complete, first, second, third, CHUNK: tl.constexpr):
    """How many keys are above each of three thresholds; `held` are those of the first chunk."""
    counts = above_each(held, first, second, third)
    for begin in tl.range(CHUNK, complete, CHUNK):
        counts += above_each(keys_of(scores, begin, complete, CHUNK), first, second, third)
    upper = (counts >> 10 & 1023).to(tl.int64) + ((counts >> 20).to(tl.int64) << 21)
    total = tl.sum((counts & 1023).to(tl.int64) + (upper << 21), axis=0)  # one sum for three: it is what takes time
    return (total & 0x1FFFFF).to(tl.int32), (total >> 21 & 0x1FFFFF).to(tl.int32), (total >> 42).to(tl.int32)


@triton.jit
def key_range(held, scores, complete, CHUNK: tl.constexpr):
    """The least and the greatest key."""
    lowest, highest = tl.where(held < 0, 0x7FFFFFFF, held), held
    for begin in tl.range(CHUNK, complete, CHUNK):
        keys = keys_of(scores, begin, complete, CHUNK)
        lowest, highest = tl.minimum(lowest, tl.where(keys < 0, 0x7FFFFFFF, keys)), tl.maximum(highest, keys)
    return tl.min(lowest, axis=0), tl.max(highest, axis=0)


@triton.jit
def search(held, scores, complete, TOP: tl.constexpr, CHUNK: tl.constexpr):
    """(low, high, room) int32: keys above `high` are chosen, and the first `room` of those above `low` up to `high`.

    At least TOP keys are above `low` and fewer above `high`, from the start on; the search ends where no key lies
    between, or where exactly TOP are above `low`. Three thresholds a turn: turns wait for sums, not for compares.
    """
    lowest, highest = key_range(held, scores, complete, CHUNK)
    low, high = lowest.to(tl.int64) - 1, highest.to(tl.int64)  # 64 bits: NaN is 2^31 - 1, and 2^31 above -1
    above_low, above_high = complete, 0
    while (above_low != TOP) & (high - low > 1):
        step = (high - low + 3) // 4
        first, second, third = low + step, tl.minimum(low + 2 * step, high), tl.minimum(low + 3 * step, high)
        reached, further, furthest = count_above(
            held, scores, complete, first.to(tl.int32), second.to(tl.int32), third.to(tl.int32), CHUNK
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
def write_chosen(chosen, keys, begin, low, high, room, before, CHUNK: tl.constexpr):
    """Write one chunk's chosen blocks. `before`: how many keys up to here lie between low and high, + 2^20 above high.

    Returns the same with this chunk's.
    """
    is_above, is_between = keys > high, (keys > low) & (keys <= high)
    counted = (is_above.to(tl.int32) << 20) + is_between.to(tl.int32)
    up_to = before + tl.cumsum(counted, axis=0)
    between = up_to & 0xFFFFF
    place = (up_to >> 20) + tl.minimum(between, room) - 1
    tl.store(chosen + place, begin + tl.arange(0, CHUNK), mask=is_above | (is_between & (between <= room)))
    return before + tl.sum(counted, axis=0)


@triton.jit
def select_kernel(
    scores, slots, positions, chosen, counts, blocks,
    RATIO: tl.constexpr, DENSE_POSITIONS: tl.constexpr, TOP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """scores [rows, blocks] -> chosen [rows, TOP], counts [rows]; grid (rows,).

    At least TOP + 1 keys are complete and each is at least 0, so TOP are always found.
    """
    begin_dependent()
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    is_choosing = (tl.load(slots + row) >= 0) & (position >= DENSE_POSITIONS)
    tl.store(counts + row, tl.where(is_choosing, TOP, 0))
    if is_choosing:
        complete = (position + 1) // RATIO
        row_scores, row_chosen = scores + row * blocks, chosen + row * TOP
        held = keys_of(row_scores, 0, complete, CHUNK)
        low, high, room = search(held, row_scores, complete, TOP, CHUNK)
        before = write_chosen(row_chosen, held, 0, low, high, room, 0, CHUNK)
        for begin in tl.range(CHUNK, complete, CHUNK):
            keys = keys_of(row_scores, begin, complete, CHUNK)
            before = write_chosen(row_chosen, keys, begin, low, high, room, before, CHUNK)


def attention_choose(rows: WindowRows, cells: AttentionCells, shape: AttentionRowsShape, work: AttentionWork) -> None:
    """See the package."""
    indexer, choice = shape.indexer, work.choice
    assert indexer is not None and choice is not None
    blocks = choice.scores.shape[1]
    programs = min(MOST_PROGRAMS, triton.cdiv(blocks, TILE_BLOCKS))
    scores_kernel[(programs, rows.count)](
        work.index_query, cells.pooled, rows.slots, rows.positions, choice.scores, blocks, indexer.head_dim**0.5,
        HEADS=indexer.heads, DIM=indexer.head_dim, RATIO=indexer.ratio, DENSE_POSITIONS=indexer.dense_positions,
        TILE=TILE_BLOCKS, num_warps=4, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
    select_blocks(rows, indexer, choice)


def select_blocks(rows: WindowRows, indexer: IndexerRowsShape, choice: BlockChoice, chunk: int = CHUNK_BLOCKS) -> None:
    """The second launch alone: from `choice.scores` on."""
    blocks = choice.scores.shape[1]
    chunk = min(chunk, triton.next_power_of_2(blocks))
    select_kernel[(rows.count,)](
        choice.scores, rows.slots, rows.positions, choice.chosen, choice.counts, blocks,
        RATIO=indexer.ratio, DENSE_POSITIONS=indexer.dense_positions, TOP=indexer.top_blocks,
        CHUNK=chunk, num_warps=max(1, min(32, chunk // 512)), enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
