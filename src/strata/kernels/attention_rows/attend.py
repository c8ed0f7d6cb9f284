"""Attention of a window's rows over their cells on a GPU: a launch for the parts of each row, one that merges them.

Knows cells and how parts.py cuts them; knows no projection and no indexer's score. A part is read once for all query
heads that share its key head. What a row gives depends on its own position and cells, on no other row.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_rows.arguments import AttentionCells, AttentionRowsShape, AttentionWork, ProjectedRows
from strata.kernels.attention_rows.launches import AttendLaunch, attend_launch
from strata.kernels.attention_rows.parts import MOST_PARTS, doublings, merged_parts, most_parts
from strata.kernels.attention_rows.products import mixed_slice, scores_of, value_slice, weights_of
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.packed_rows.activations import store_quantized
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.stored_cells import columns_of, groups_of, load_codes, load_scales, pointers, rotate
from strata.kernels.window_rows import WindowRows
from strata.quant.cell_codes import CellCode
from strata.quant.layout import BLOCK_COLUMNS

SLICE_COLUMNS = 64  # of a key or a value, whose scale they share: four to sixteen threads read those of one cell


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
def attend_chunk(
    query, keys, keys_scales, values, values_scales, table, chosen, first, stop, seen, budget, position, position_at,
    peak, total, sums,
    KEY_CODE: tl.constexpr, VALUE_CODE: tl.constexpr, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr,
    IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, CHUNK: tl.constexpr, SLICE: tl.constexpr,
    ASKS_VALUES_EARLY: tl.constexpr, IS_PAGED: tl.constexpr,
):  # fmt: skip
    """Peak, total and mixed values (a tensor for each slice of columns) with the next cells; the first one is seen.

    query: of the key head's first query head; keys, values and their scales: of the slot's first cell, or of the
    pool's, where `table` has the place of each of the slot's blocks; position_at: where `position` lies.
    """
    SLICES: tl.constexpr = DIM // SLICE
    column, is_member = tl.arange(0, SLICE)[None, :], (tl.arange(0, PADDED) < GROUP)[:, None]
    of_query = query + tl.arange(0, PADDED)[:, None] * DIM + column
    i = first + tl.arange(0, CHUNK)
    is_seen = i < stop
    cell = tl.where(is_seen, cell_numbers(i, seen, budget, position, chosen, IS_INDEXED, RATIO), 0)
    if IS_PAGED:
        cell = tl.load(table + cell // RATIO) * RATIO + cell % RATIO
    head = cell * KV_HEADS
    # All are asked for before one is waited for: no compiler moves a load behind a barrier, or before it what needs a
    # number that is loaded behind it. Without, Triton puts a factor into shared memory as soon as it is asked for.
    asked, value = (), ()
    for number in tl.static_range(SLICES):
        asked += (tl.load(of_query + number * SLICE, mask=is_member, other=0.0),)
    key = load_codes(keys, head, is_seen, KEY_CODE, DIM, SLICE)
    key_scales = load_scales(keys_scales, head, is_seen, KEY_CODE, DIM)
    if ASKS_VALUES_EARLY:
        value = load_codes(values, head, is_seen, VALUE_CODE, DIM, SLICE)
    value_scales = load_scales(values_scales, head, is_seen, VALUE_CODE, DIM)
    tl.debug_barrier()
    zero = tl.load(position_at) >> 31  # positions of used rows are not negative
    scores = scores_of(asked, key, key_scales, zero, PADDED, CHUNK, KEY_CODE, DIM, SLICE)
    if not ASKS_VALUES_EARLY:
        value = load_codes(values, head, is_seen, VALUE_CODE, DIM, SLICE)
    factors = ()
    IS_STAGED: tl.constexpr = ASKS_VALUES_EARLY or VALUE_CODE != "f32"
    if IS_STAGED:  # else they are made one by one, to need less shared memory
        for number in tl.static_range(SLICES):
            factors += (value_slice(value, number, zero, VALUE_CODE, DIM, SLICE),)
    scores = tl.where((first + tl.arange(0, CHUNK) < stop)[None, :], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))  # finite: a cell is seen
    shares = tl.exp(scores - new_peak[:, None])
    fade = tl.exp(peak - new_peak)
    weights = weights_of(shares, value_scales, zero, VALUE_CODE, DIM)
    new_sums = ()
    for number in tl.static_range(SLICES):
        factor = factors[number] if IS_STAGED else value_slice(value, number, zero, VALUE_CODE, DIM, SLICE)
        added = mixed_slice(weights, factor, number, VALUE_CODE, SLICE)
        new_sums += (sums[number] * fade[:, None] + added,)
    return new_peak, total * fade + tl.sum(shares, axis=1), new_sums


@triton.jit
def attend_kernel(
    query, keys, keys_scales, values, values_scales, table, slots, positions, chosen, counts, peaks, totals, mixed,
    cells, parts,
    KEY_CODE: tl.constexpr, VALUE_CODE: tl.constexpr,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr,
    IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, TOP: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, TIMES: tl.constexpr, CHUNK: tl.constexpr, SLICE: tl.constexpr,
    ASKS_VALUES_EARLY: tl.constexpr, LOOPS: tl.constexpr, IS_PAGED: tl.constexpr,
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
        slot_cells = slot.to(tl.int64) * cells
        first_cell = kv_head if IS_PAGED else slot_cells * KV_HEADS + kv_head
        slot_keys = keys + first_cell * columns_of(KEY_CODE, DIM)
        slot_values = values + first_cell * columns_of(VALUE_CODE, DIM)
        slot_keys_scales = keys_scales + first_cell * groups_of(DIM)
        slot_values_scales = values_scales + first_cell * groups_of(DIM)
        slot_table = table + slot_cells // RATIO
        stop = tl.minimum(start + size, seen)
        peak = tl.full((PADDED,), float("-inf"), tl.float32)
        total = tl.zeros((PADDED,), tl.float32)
        sums = (tl.zeros((PADDED, SLICE), tl.float32),) * (DIM // SLICE)
        if LOOPS:
            for first in tl.range(start, stop, CHUNK, num_stages=1):
                peak, total, sums = attend_chunk(
                    of_group, slot_keys, slot_keys_scales, slot_values, slot_values_scales, slot_table, row_chosen,
                    first, stop, seen, budget, position, positions + row, peak, total, sums, KEY_CODE, VALUE_CODE,
                    KV_HEADS, GROUP, PADDED, DIM, IS_INDEXED, RATIO, CHUNK, SLICE, ASKS_VALUES_EARLY, IS_PAGED,
                )  # fmt: skip
        else:
            peak, total, sums = attend_chunk(
                of_group, slot_keys, slot_keys_scales, slot_values, slot_values_scales, slot_table, row_chosen,
                start, stop, seen, budget, position, positions + row, peak, total, sums, KEY_CODE, VALUE_CODE,
                KV_HEADS, GROUP, PADDED, DIM, IS_INDEXED, RATIO, CHUNK, SLICE, ASKS_VALUES_EARLY, IS_PAGED,
            )  # fmt: skip
        member, column = tl.arange(0, PADDED), tl.arange(0, SLICE)
        place = (first_head + member) * parts + part
        tl.store(peaks + place, peak, mask=member < GROUP)
        tl.store(totals + place, total, mask=member < GROUP)
        at = place[:, None] * DIM + column[None, :]
        for number in tl.static_range(DIM // SLICE):
            tl.store(mixed + at + number * SLICE, sums[number], mask=(member < GROUP)[:, None])


@triton.jit
def part_sums(peaks, mixed, place, begin, seen, size, DIM: tl.constexpr, STEP: tl.constexpr):
    """Peaks [STEP] and mixed values [STEP, columns] of the parts from `begin` on of those at `place`."""
    part = begin + tl.arange(0, STEP)
    exists = part * size < seen
    peak = tl.load(peaks + place + part, mask=exists, other=float("-inf"))
    return peak, tl.load(mixed + (place + part)[:, None] * DIM, mask=exists[:, None], other=0.0)


@triton.jit(do_not_specialize=["row_step", "block_step"])
def merge_kernel(
    peaks, totals, mixed, qkv, qkv_stride, slots, positions, counts, plain, q, records, row_step, block_step, parts,
    QUERY_HEADS: tl.constexpr, DIM: tl.constexpr, IS_GATED: tl.constexpr,
    IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, TOP: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, TIMES: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
    COLUMNS: tl.constexpr, IS_ROTATED: tl.constexpr, HAS_PLAIN: tl.constexpr, IS_QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Up to PARTS parts added up, STEP of them at a time, times the gate, for COLUMNS columns of a row.

    grid (QUERY_HEADS * DIM / COLUMNS, rows). IS_ROTATED: the columns are a head, which is rotated back.
    """
    begin_dependent()
    run = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    seen, _ = seen_cells(slot, position, counts + row, IS_INDEXED, RATIO, TOP)
    size = part_size(seen, LEAST, MOST, TIMES)
    part, column = tl.arange(0, PARTS), tl.arange(0, COLUMNS)
    head, first = run // (DIM // COLUMNS), run % (DIM // COLUMNS) * COLUMNS
    place = (row * QUERY_HEADS + head) * parts
    peak = tl.load(peaks + place + part, mask=part * size < seen, other=float("-inf"))
    totals_of_parts = tl.load(totals + place + part, mask=part * size < seen, other=0.0)
    own_peak, sums = part_sums(peaks, mixed + first + column[None, :], place, 0, seen, size, DIM, STEP)
    gate = tl.zeros((COLUMNS,), tl.float32)
    if IS_GATED:
        gate = tl.load(qkv + row * qkv_stride + (head * 2 + 1) * DIM + first + column)
    highest = tl.where(seen > 0, tl.max(peak, axis=0), 0.0)
    total = tl.sum(tl.exp(peak - highest) * totals_of_parts, axis=0)
    attended = tl.sum(sums * tl.exp(own_peak - highest)[:, None], axis=0)  # shares of parts that do not exist are 0
    for begin in tl.range(STEP, PARTS, STEP, num_stages=1):
        own_peak, sums = part_sums(peaks, mixed + first + column[None, :], place, begin, seen, size, DIM, STEP)
        attended += tl.sum(sums * tl.exp(own_peak - highest)[:, None], axis=0)
    attended = tl.div_rn(attended, tl.zeros((COLUMNS,), tl.float32) + tl.where(seen > 0, total, 1.0))
    if IS_ROTATED:
        attended = rotate(attended, 1, COLUMNS)
    if IS_GATED:
        attended = tl.div_rn(attended, 1.0 + tl.exp(-gate))
    attended = tl.where(seen > 0, attended, 0.0)  # an unused row's gate may be NaN
    if HAS_PLAIN:
        tl.store(plain + row * (QUERY_HEADS * DIM) + run * COLUMNS + column, attended)
    if IS_QUANTIZED:
        BLOCKS: tl.constexpr = COLUMNS // 32
        number = run * BLOCKS + tl.arange(0, BLOCKS)
        halves = tl.reshape(attended, (BLOCKS, 2, 16))
        store_quantized(halves, q, records, row, number, (run + 1) * BLOCKS, row_step, block_step)


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
    launch = launch or attend_launch(rows.count, cells.kind)
    indexer, choice = shape.indexer, work.choice
    most_seen, least = shape.most_seen(cells.count), launch.least_part
    longest_part = least << doublings(most_seen, least)
    chosen, counts = (rows.slots, rows.slots) if choice is None else (choice.chosen, choice.counts)
    constants = {
        "QUERY_HEADS": shape.query_heads, "DIM": shape.head_dim, "IS_INDEXED": indexer is not None,
        "RATIO": 1 if indexer is None else indexer.ratio, "TOP": 0 if indexer is None else indexer.top_blocks,
        "LEAST": least, "MOST": MOST_PARTS, "TIMES": doublings(most_seen, least),
        "enable_fp_fusion": False, **dependent_options(),
    }  # fmt: skip
    key_code, value_code = cells.kind.keys, cells.kind.values
    has_nibbles = CellCode.CODE4 in (key_code, value_code)
    held = cells if cells.pages is None else cells.pages
    table = rows.slots if cells.pages is None else cells.pages.table  # the former is not looked at
    attend_kernel[(shape.kv_heads, rows.count, most_parts(most_seen, least))](
        work.query, *pointers(held.keys), *pointers(held.values), table, rows.slots, rows.positions,
        chosen, counts, work.peaks, work.totals, work.mixed, cells.count, work.parts,
        KEY_CODE=key_code.value, VALUE_CODE=value_code.value,
        KV_HEADS=shape.kv_heads, GROUP=shape.group, PADDED=max(16, triton.next_power_of_2(shape.group)),
        CHUNK=launch.chunk, SLICE=min(SLICE_COLUMNS, shape.head_dim // (2 if has_nibbles else 1)),
        ASKS_VALUES_EARLY=launch.asks_values_early,
        LOOPS=launch.loops or longest_part > launch.chunk, IS_PAGED=cells.pages is not None,
        num_warps=launch.warps, num_stages=1, maxnreg=launch.registers, **constants,
    )  # fmt: skip
    plain = work.query if out.plain is None else out.plain
    quantized = (work.query, work.query, 0, 0) if out.quantized is None else out.quantized.arguments
    columns = shape.head_dim if value_code.is_rotated else BLOCK_COLUMNS
    merged = merged_parts(None if indexer is None else indexer.dense_positions, least)
    merge_kernel[(shape.query_width // columns, rows.count)](
        work.peaks, work.totals, work.mixed, projected.qkv, projected.qkv.stride(0), rows.slots, rows.positions, counts,
        plain, *quantized, work.parts,
        IS_GATED=shape.has_output_gate, COLUMNS=columns, IS_ROTATED=value_code.is_rotated,
        PARTS=merged, STEP=min(merged, launch.rotated_merge_step) if value_code.is_rotated else merged,
        HAS_PLAIN=out.plain is not None, IS_QUANTIZED=out.quantized is not None,
        num_warps=launch.rotated_merge_warps if value_code.is_rotated else launch.merge_warps, **constants,
    )  # fmt: skip
