"""The blocks that rows of a window attend to, on a GPU, in one launch: many programs score a row, its last one selects.

Knows scores; how the best are found is in select.py. A row that sees every block leaves at once.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.arrivals import arrives_last
from strata.kernels.attention_rows.arguments import AttentionCells, AttentionRowsShape, AttentionWork
from strata.kernels.attention_rows.launches import CHOOSE_LAUNCH, ChooseLaunch
from strata.kernels.attention_rows.select import select_best
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.window_rows import WindowRows

MOST_PROGRAMS = 256  # of all rows, two for each multiprocessor of a large GPU: they take a row's tiles in turn
CHUNK_BLOCKS = 16_384  # of a row's scores held in registers while its threshold is sought


@triton.jit
def score_blocks(
    query, keys, block, complete, root,
    HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """query [HEADS, DIM], keys [blocks, DIM] of a slot -> the scores of the blocks `block` [TILE]."""
    column = tl.arange(0, SLICE)[None, :]
    at = block[:, None] * DIM + column
    loaded = ()
    for number in tl.static_range(DIM // SLICE):
        key = tl.load(keys + at + number * SLICE, mask=(block < complete)[:, None], other=0.0)
        loaded += (key,)
    total = tl.zeros((TILE,), tl.float32)
    for head in tl.static_range(HEADS):
        products = tl.zeros((TILE, SLICE), tl.float32)
        for number in tl.static_range(DIM // SLICE):
            products += loaded[number] * tl.load(query + head * DIM + number * SLICE + column)
        product = tl.sum(products, axis=1)
        total += tl.where(product > 0.0, product, 0.0)
    return tl.div_rn(total, tl.zeros((TILE,), tl.float32) + root)


@triton.jit
def choose_kernel(
    query, pooled, slots, positions, scores, chosen, counts, arrivals, blocks, root,
    HEADS: tl.constexpr, DIM: tl.constexpr, RATIO: tl.constexpr, DENSE_POSITIONS: tl.constexpr, TOP: tl.constexpr,
    TILE: tl.constexpr, SLICE: tl.constexpr, CHUNK: tl.constexpr, IS_ONE_CHUNK: tl.constexpr,
):  # fmt: skip
    """query [rows, HEADS, DIM], pooled [slots, blocks, DIM] -> scores [rows, blocks], chosen [rows, TOP], counts.

    grid (programs, rows): a row's programs take its tiles in turn.
    """
    begin_dependent()
    program, programs = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    position = tl.load(positions + row)
    complete = tl.where((slot >= 0) & (position >= DENSE_POSITIONS), (position + 1) // RATIO, 0)
    if program == 0:
        tl.store(counts + row, tl.where(complete > 0, TOP, 0))
    if program * TILE < complete:
        row_scores = scores + row * blocks
        for first in tl.range(program * TILE, complete, programs * TILE):
            block = first + tl.arange(0, TILE)
            score = score_blocks(
                query + row * (HEADS * DIM), pooled + slot * blocks * DIM, block, complete, root,
                HEADS, DIM, TILE, SLICE,
            )  # fmt: skip
            tl.store(row_scores + block, score, mask=block < complete)
        if arrives_last(arrivals + row, tl.minimum(tl.cdiv(complete, TILE), programs)):
            select_best(row_scores, chosen + row * TOP, complete, TOP, CHUNK, IS_ONE_CHUNK)


def attention_choose(
    rows: WindowRows,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionWork,
    launch: ChooseLaunch = CHOOSE_LAUNCH,
) -> None:
    """See the package."""
    indexer, choice = shape.indexer, work.choice
    assert indexer is not None and choice is not None
    blocks = choice.scores.shape[1]
    chunk = min(CHUNK_BLOCKS, triton.next_power_of_2(blocks))
    registers = launch.registers if chunk <= 16 * 32 * launch.warps else None  # more than 16 scores a thread need more
    programs = min(max(1, MOST_PROGRAMS // rows.count), triton.cdiv(blocks, launch.tile))
    choose_kernel[(programs, rows.count)](
        work.index_query, cells.pooled, rows.slots, rows.positions, choice.scores, choice.chosen, choice.counts,
        choice.arrivals, blocks, indexer.head_dim**0.5,
        HEADS=indexer.heads, DIM=indexer.head_dim, RATIO=indexer.ratio, DENSE_POSITIONS=indexer.dense_positions,
        TOP=indexer.top_blocks, TILE=launch.tile, SLICE=min(launch.slice, indexer.head_dim), CHUNK=chunk,
        IS_ONE_CHUNK=blocks <= chunk,
        num_warps=launch.warps, maxnreg=registers, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
