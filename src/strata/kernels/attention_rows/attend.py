"""Attention of a window's rows over their cells on a GPU: a launch for the parts of each row, one that merges them.

Knows cells and how parts.py cuts them; knows no projection and no indexer's score. A part is read once for all query
heads that share its key head. What a row gives depends on its own position and cells, on no other row.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_rows.arguments import AttentionCells, AttentionRowsShape, AttentionWork, ProjectedRows
from strata.kernels.attention_rows.launches import AttendLaunch, attend_launch
from strata.kernels.attention_rows.parts import MOST_PARTS, doublings
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.packed_rows.activations import store_quantized
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.layout import BLOCK_COLUMNS

SLICE_COLUMNS = 64  # of a key or a value: sixteen threads of a warp read those of one cell


@triton.jit
def seen_cells(slot, position, count, IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, TOP: tl.constexpr):
    """How many cells a row attends to (0: it is unused), how many of them are of chosen blocks. count: a pointer."""
    seen = position + 1
    budget = 0
    if IS_INDEXED:
        is_choosing = tl.load(count) > 0
        budget = tl.where(is_choosing, TOP * RATIO, 0)
        seen = tl.where(is_choosing, TOP * RATIO + seen % RATIO, seen)
    return tl.where(slot >= 0, seen, 0), budget


@triton.jit
def part_size(seen, LEAST: tl.constexpr, MOST: tl.constexpr, TIMES: tl.constexpr):
    """See parts.py; TIMES: doublings of the longest row."""
    size = tl.where(seen >= 0, LEAST, LEAST)
    for _ in tl.static_range(TIMES):
        size = tl.where(size * MOST < seen, size * 2, size)
    return size


@triton.jit
def cell_numbers(i, seen, budget, position, chosen, IS_INDEXED: tl.constexpr, RATIO: tl.constexpr):
    """The cells number i of those that a row attends to: chosen blocks first, then the open tail."""
    if IS_INDEXED:
        is_chosen = i < budget
        block = tl.load(chosen + i // RATIO, mask=is_chosen, other=0)
        tail = tl.where(budget > 0, position + 1 - seen + i, i)
        cell = tl.where(is_chosen, block * RATIO + i % RATIO, tail)
    else:
        cell = i
    return cell


@triton.jit
def halves(values, half):
    """float32 -> the nearest with the 10 bits that matrix units read behind the point, and what is left of it.

    half: 0x1000, half of the last of those bits. For finite values. Of what is left the units read 10 bits more, so a
    product of two values is the sum of three, but for 2^-20 of it.
    """
    nearest = ((values.to(tl.int32, bitcast=True) + half) & -0x2000).to(tl.float32, bitcast=True)
    return nearest, values - nearest


@triton.jit
def scores_of(queries, keys, half, PADDED: tl.constexpr, CHUNK: tl.constexpr, SLICES: tl.constexpr):
    """queries [PADDED, columns] and keys [CHUNK, columns] of each slice -> their products [PADDED, CHUNK]."""
    one = tl.full((PADDED, CHUNK), 1.0, tl.float32)
    scores, of_rest, with_rest = (tl.zeros((PADDED, CHUNK), tl.float32),) * 3
    for number in tl.static_range(SLICES):
        q, q_rest = halves(queries[number], half)
        key, key_rest = halves(tl.trans(keys[number].to(tl.float32)), half)
        of_rest = tl.dot(q_rest, key, of_rest, input_precision="tf32")
        with_rest = tl.dot(q, key_rest, with_rest, input_precision="tf32")
        scores = tl.fma(tl.dot(q, key, input_precision="tf32"), one, scores)  # a sum: chains of products stay short
    return scores + (of_rest + with_rest)


@triton.jit
def attend_chunk(
    query, keys, values, chosen, first, stop, seen, budget, position, position_at, peak, total, sums,
    GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, STEP: tl.constexpr,
    IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, CHUNK: tl.constexpr, SLICE: tl.constexpr,
    ASKS_VALUES_EARLY: tl.constexpr,
):  # fmt: skip
    """Peak, total and mixed values (a tensor for each slice of columns) with the next cells; the first one is seen.

    query: of the key head's first query head; keys, values: of the slot's first cell, STEP from one to the next;
    position_at: where `position` lies.
    """
    SLICES: tl.constexpr = DIM // SLICE
    column, is_member = tl.arange(0, SLICE)[None, :], (tl.arange(0, PADDED) < GROUP)[:, None]
    of_query = query + tl.arange(0, PADDED)[:, None] * DIM + column
    i = first + tl.arange(0, CHUNK)
    cell = tl.where(i < stop, cell_numbers(i, seen, budget, position, chosen, IS_INDEXED, RATIO), 0)
    is_seen = (i < stop)[:, None]
    at = (cell * STEP)[:, None] + column
    # All are asked for before one is waited for: no compiler moves a load behind a barrier, or before it what needs a
    # number that is loaded behind it. Without, Triton puts a factor into shared memory as soon as it is asked for.
    asked, loaded, value = (), (), ()
    for number in tl.static_range(SLICES):
        asked += (tl.load(of_query + number * SLICE, mask=is_member, other=0.0),)
        loaded += (tl.load(keys + at + number * SLICE, mask=is_seen, other=0.0),)
    if ASKS_VALUES_EARLY:
        for number in tl.static_range(SLICES):
            value += (tl.load(values + at + number * SLICE, mask=is_seen, other=0.0),)
    tl.debug_barrier()
    half = 0x1000 + (tl.load(position_at) >> 31)  # positions of used rows are not negative
    scores = scores_of(asked, loaded, half, PADDED, CHUNK, SLICES)
    if not ASKS_VALUES_EARLY:
        for number in tl.static_range(SLICES):
            value += (tl.load(values + at + number * SLICE, mask=is_seen, other=0.0),)
    factors = ()
    if ASKS_VALUES_EARLY:  # else they are made one by one, to need less shared memory
        for number in tl.static_range(SLICES):
            factors += (halves(value[number].to(tl.float32), half),)
    scores = tl.where((first + tl.arange(0, CHUNK) < stop)[None, :], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))  # finite: a cell is seen
    shares = tl.exp(scores - new_peak[:, None])
    fade = tl.exp(peak - new_peak)
    share, share_rest = halves(shares, half)
    new_sums = ()
    for number in tl.static_range(SLICES):
        factor, factor_rest = factors[number] if ASKS_VALUES_EARLY else halves(value[number].to(tl.float32), half)
        added = tl.dot(share_rest, factor, input_precision="tf32")
        added = tl.dot(share, factor_rest, added, input_precision="tf32")
        added = tl.dot(share, factor, added, input_precision="tf32")
        new_sums += (sums[number] * fade[:, None] + added,)
    return new_peak, total * fade + tl.sum(shares, axis=1), new_sums


@triton.jit
def attend_kernel(
    query, keys, values, slots, positions, chosen, counts, peaks, totals, mixed, cells, parts,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr,
    IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, TOP: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, TIMES: tl.constexpr, CHUNK: tl.constexpr, SLICE: tl.constexpr,
    ASKS_VALUES_EARLY: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    """Peak, total and mixed values of each part; grid (KV_HEADS, rows, parts): parts that no row has come last.

    PADDED: rows of the products.
    """
    begin_dependent()
    kv_head, part = tl.program_id(0), tl.program_id(2)
    row = tl.program_id(1).to(tl.int64)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    seen, budget = seen_cells(slot, position, counts + row, IS_INDEXED, RATIO, TOP)
    size = part_size(seen, LEAST, MOST, TIMES)
    start = part * size
    if start < seen:
        first_head, row_chosen = row * QUERY_HEADS + kv_head * GROUP, chosen + row * TOP
        of_group = query + first_head * DIM
        first_cell = (slot.to(tl.int64) * cells * KV_HEADS + kv_head) * DIM
        slot_keys, slot_values = keys + first_cell, values + first_cell
        stop = tl.minimum(start + size, seen)
        peak = tl.full((PADDED,), float("-inf"), tl.float32)
        total = tl.zeros((PADDED,), tl.float32)
        sums = (tl.zeros((PADDED, SLICE), tl.float32),) * (DIM // SLICE)
        if LOOPS:
            for first in tl.range(start, stop, CHUNK, num_stages=1):
                peak, total, sums = attend_chunk(
                    of_group, slot_keys, slot_values, row_chosen, first, stop, seen, budget, position, positions + row,
                    peak, total, sums, GROUP, PADDED, DIM, KV_HEADS * DIM, IS_INDEXED, RATIO, CHUNK, SLICE,
                    ASKS_VALUES_EARLY,
                )  # fmt: skip
        else:
            peak, total, sums = attend_chunk(
                of_group, slot_keys, slot_values, row_chosen, start, stop, seen, budget, position, positions + row,
                peak, total, sums, GROUP, PADDED, DIM, KV_HEADS * DIM, IS_INDEXED, RATIO, CHUNK, SLICE,
                ASKS_VALUES_EARLY,
            )  # fmt: skip
        member, column = tl.arange(0, PADDED), tl.arange(0, SLICE)
        place = (first_head + member) * parts + part
        tl.store(peaks + place, peak, mask=member < GROUP)
        tl.store(totals + place, total, mask=member < GROUP)
        at = place[:, None] * DIM + column[None, :]
        for number in tl.static_range(DIM // SLICE):
            tl.store(mixed + at + number * SLICE, sums[number], mask=(member < GROUP)[:, None])


@triton.jit(do_not_specialize=["row_step", "block_step"])
def merge_kernel(
    peaks, totals, mixed, qkv, qkv_stride, slots, positions, counts, plain, q, records, row_step, block_step, parts,
    QUERY_HEADS: tl.constexpr, DIM: tl.constexpr, IS_GATED: tl.constexpr,
    IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, TOP: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, TIMES: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_PLAIN: tl.constexpr, IS_QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Parts added up, times the gate, for COLUMNS columns of a row; grid (QUERY_HEADS * DIM / COLUMNS, rows)."""
    begin_dependent()
    block = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    seen, _ = seen_cells(slot, position, counts + row, IS_INDEXED, RATIO, TOP)
    size = part_size(seen, LEAST, MOST, TIMES)
    part, column = tl.arange(0, MOST), tl.arange(0, COLUMNS)
    exists = part * size < seen
    head, first = block // (DIM // COLUMNS), block % (DIM // COLUMNS) * COLUMNS
    place = (row * QUERY_HEADS + head) * parts + part
    peak = tl.load(peaks + place, mask=exists, other=float("-inf"))
    totals_of_parts = tl.load(totals + place, mask=exists, other=0.0)
    sums = tl.load(mixed + place[:, None] * DIM + (first + column)[None, :], mask=exists[:, None], other=0.0)
    gate = tl.zeros((COLUMNS,), tl.float32)
    if IS_GATED:
        gate = tl.load(qkv + row * qkv_stride + (head * 2 + 1) * DIM + first + column)
    highest = tl.where(seen > 0, tl.max(peak, axis=0), 0.0)
    share = tl.exp(peak - highest)  # 0 of parts that do not exist
    total = tl.sum(share * totals_of_parts, axis=0)
    attended = tl.sum(sums * share[:, None], axis=0)
    attended = tl.div_rn(attended, tl.zeros((COLUMNS,), tl.float32) + tl.where(seen > 0, total, 1.0))
    if IS_GATED:
        attended = tl.div_rn(attended, 1.0 + tl.exp(-gate))
    attended = tl.where(seen > 0, attended, 0.0)  # an unused row's gate may be NaN
    if HAS_PLAIN:
        tl.store(plain + row * (QUERY_HEADS * DIM) + block * COLUMNS + column, attended)
    if IS_QUANTIZED:
        number = block + tl.arange(0, 1)
        halves = tl.reshape(attended, (1, 2, 16))
        store_quantized(halves, q, records, row, number, block + 1, row_step, block_step)


def attention_attend(
    projected: ProjectedRows,
    rows: WindowRows,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionWork,
    out: RowsOut,
    launch: AttendLaunch | None = None,
) -> None:
    """See the package. launch: None for that of the bucket."""
    launch = launch or attend_launch(rows.count)
    indexer, choice = shape.indexer, work.choice
    longest_part = launch.least_part << doublings(shape.most_seen(cells.count), launch.least_part)
    chosen, counts = (rows.slots, rows.slots) if choice is None else (choice.chosen, choice.counts)
    constants = {
        "QUERY_HEADS": shape.query_heads, "DIM": shape.head_dim, "IS_INDEXED": indexer is not None,
        "RATIO": 1 if indexer is None else indexer.ratio, "TOP": 0 if indexer is None else indexer.top_blocks,
        "LEAST": launch.least_part, "MOST": MOST_PARTS,
        "TIMES": doublings(shape.most_seen(cells.count), launch.least_part),
        "enable_fp_fusion": False, **dependent_options(),
    }  # fmt: skip
    attend_kernel[(shape.kv_heads, rows.count, work.parts)](
        work.query, cells.keys, cells.values, rows.slots, rows.positions, chosen, counts,
        work.peaks, work.totals, work.mixed, cells.count, work.parts,
        KV_HEADS=shape.kv_heads, GROUP=shape.group, PADDED=max(16, triton.next_power_of_2(shape.group)),
        CHUNK=launch.chunk, SLICE=min(SLICE_COLUMNS, shape.head_dim), ASKS_VALUES_EARLY=launch.asks_values_early,
        LOOPS=launch.loops or longest_part > launch.chunk,
        num_warps=launch.warps, num_stages=1, maxnreg=launch.registers, **constants,
    )  # fmt: skip
    plain = work.query if out.plain is None else out.plain
    quantized = (work.query, work.query, 0, 0) if out.quantized is None else out.quantized.arguments
    merge_kernel[(shape.query_width // BLOCK_COLUMNS, rows.count)](
        work.peaks, work.totals, work.mixed, projected.qkv, projected.qkv.stride(0), rows.slots, rows.positions, counts,
        plain, *quantized, work.parts,
        IS_GATED=shape.has_output_gate, COLUMNS=BLOCK_COLUMNS, HAS_PLAIN=out.plain is not None,
        IS_QUANTIZED=out.quantized is not None, num_warps=launch.merge_warps, **constants,
    )  # fmt: skip
