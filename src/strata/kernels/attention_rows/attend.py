"""Attention of a window's rows over their cells on a GPU: a launch for the parts of each row, one that merges them.

Knows cells and how parts.py cuts them; knows no projection and no indexer's score. A part is read once for all query
heads that share its key head. What a row gives depends on its own position and cells, on no other row.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_rows.arguments import AttentionCells, AttentionRowsShape, AttentionWork, ProjectedRows
from strata.kernels.attention_rows.parts import LEAST_PART, MOST_PARTS, doublings
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.packed_rows.activations import store_quantized
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.layout import BLOCK_COLUMNS

CHUNK_CELLS = 32  # read at a time: keys and values of 256 float32 are then 64 KB of shared memory
# Each factor is split into two tf32 and three products are added: what is left out is below 2^-20 of a product. With
# "ieee" Triton 3.6 leaves the keys unswizzled in shared memory, so that a warp's 32 reads of them meet in one bank.
PRECISION = "tf32x3"
SLICE_COLUMNS = 64  # of a score: one chain of 256 columns is 96 products that wait for each other


@triton.jit
def seen_cells(slots, positions, counts, row, IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, TOP: tl.constexpr):
    """How many cells a row attends to (0: it is unused), how many of them are of chosen blocks."""
    seen = tl.load(positions + row) + 1
    budget = 0
    if IS_INDEXED:
        is_choosing = tl.load(counts + row) > 0
        budget = tl.where(is_choosing, TOP * RATIO, 0)
        seen = tl.where(is_choosing, TOP * RATIO + seen % RATIO, seen)
    return tl.where(tl.load(slots + row) >= 0, seen, 0), budget


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
def attend_kernel(
    query, keys, values, slots, positions, chosen, counts, peaks, totals, mixed, cells, parts,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr,
    IS_INDEXED: tl.constexpr, RATIO: tl.constexpr, TOP: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, TIMES: tl.constexpr, CHUNK: tl.constexpr, SLICE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Peak, total and mixed values of each part; grid (parts, KV_HEADS, rows). PADDED: rows of the products."""
    begin_dependent()
    part, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    seen, budget = seen_cells(slots, positions, counts, row, IS_INDEXED, RATIO, TOP)
    size = part_size(seen, LEAST, MOST, TIMES)
    start = part * size
    if start < seen:
        position = tl.load(positions + row)
        slot_cells = (tl.load(slots + row).to(tl.int64) * cells * KV_HEADS + kv_head) * DIM
        stop = tl.minimum(start + size, seen)
        member, d = tl.arange(0, PADDED), tl.arange(0, DIM)
        head = row * QUERY_HEADS + kv_head * GROUP + member
        is_member = member < GROUP
        column = tl.arange(0, SLICE)[None, :]
        q = ()
        for number in tl.static_range(DIM // SLICE):
            at_query = head[:, None] * DIM + number * SLICE + column
            q += (tl.load(query + at_query, mask=is_member[:, None], other=0.0),)
        peak = tl.full((PADDED,), float("-inf"), tl.float32)
        total = tl.zeros((PADDED,), tl.float32)
        sums = tl.zeros((PADDED, DIM), tl.float32)
        for first in tl.range(start, stop, CHUNK, num_stages=1):
            i = first + tl.arange(0, CHUNK)
            is_seen = i < stop
            cell = cell_numbers(i, seen, budget, position, chosen + row * TOP, IS_INDEXED, RATIO)
            cell = tl.where(is_seen, cell, 0)
            at = slot_cells + (cell * (KV_HEADS * DIM))[:, None]
            # All are asked for before one is used. Triton puts a factor into shared memory, behind a barrier, as soon
            # as it is made: so the keys are made, by a choice that changes nothing, behind the loads.
            loaded = ()
            for number in tl.static_range(DIM // SLICE):
                loaded += (tl.load(keys + at + (number * SLICE + column), mask=is_seen[:, None], other=0.0),)
            value = tl.load(values + at + d[None, :], mask=is_seen[:, None], other=0.0).to(tl.float32)
            scores = tl.zeros((PADDED, CHUNK), tl.float32)
            for number in tl.static_range(DIM // SLICE):
                key = tl.where(is_seen[:, None], loaded[number].to(tl.float32), 0.0)
                scores += tl.dot(q[number], tl.trans(key), input_precision=PRECISION)
            scores = tl.where(is_seen[None, :], scores, float("-inf"))
            # every chunk has a cell that is seen, so the new peak is finite
            new_peak = tl.maximum(peak, tl.max(scores, axis=1))
            shares = tl.exp(scores - new_peak[:, None])
            fade = tl.exp(peak - new_peak)
            total = total * fade + tl.sum(shares, axis=1)
            sums = sums * fade[:, None] + tl.dot(shares, value, input_precision=PRECISION)
            peak = new_peak
        place = head * parts + part
        tl.store(peaks + place, peak, mask=is_member)
        tl.store(totals + place, total, mask=is_member)
        tl.store(mixed + place[:, None] * DIM + d[None, :], sums, mask=is_member[:, None])


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
    seen, _ = seen_cells(slots, positions, counts, row, IS_INDEXED, RATIO, TOP)
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
    precision: str = PRECISION,
) -> None:
    """See the package; `precision` is that of tl.dot."""
    indexer, choice = shape.indexer, work.choice
    chosen, counts = (rows.slots, rows.slots) if choice is None else (choice.chosen, choice.counts)
    constants = {
        "QUERY_HEADS": shape.query_heads, "DIM": shape.head_dim, "IS_INDEXED": indexer is not None,
        "RATIO": 1 if indexer is None else indexer.ratio, "TOP": 0 if indexer is None else indexer.top_blocks,
        "LEAST": LEAST_PART, "MOST": MOST_PARTS,
        "TIMES": doublings(shape.most_seen(cells.count)),
        "enable_fp_fusion": False, **dependent_options(),
    }  # fmt: skip
    attend_kernel[(work.parts, shape.kv_heads, rows.count)](
        work.query, cells.keys, cells.values, rows.slots, rows.positions, chosen, counts,
        work.peaks, work.totals, work.mixed, cells.count, work.parts,
        KV_HEADS=shape.kv_heads, GROUP=shape.group, PADDED=max(16, triton.next_power_of_2(shape.group)),
        CHUNK=CHUNK_CELLS, SLICE=min(SLICE_COLUMNS, shape.head_dim), PRECISION=precision,
        num_warps=4, num_stages=1, **constants,
    )  # fmt: skip
    plain = work.query if out.plain is None else out.plain
    quantized = (work.query, work.query, 0, 0) if out.quantized is None else out.quantized.arguments
    merge_kernel[(shape.query_width // BLOCK_COLUMNS, rows.count)](
        work.peaks, work.totals, work.mixed, projected.qkv, projected.qkv.stride(0), rows.slots, rows.positions, counts,
        plain, *quantized, work.parts,
        IS_GATED=shape.has_output_gate, COLUMNS=BLOCK_COLUMNS, HAS_PLAIN=out.plain is not None,
        IS_QUANTIZED=out.quantized is not None, num_warps=4, **constants,
    )  # fmt: skip
