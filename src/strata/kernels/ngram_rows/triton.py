"""The n-gram embedding of a window's rows on a GPU. Knows the hash and the gates; knows no matrix and no stream's use.

A program of the gather decodes one table row, of one head; a program of the gates has one stream of one row; a program
of the convolution has some columns of one row, and reads what the gates have left for the rows before it.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.elementary import inverse_root, sigmoid
from strata.kernels.ngram_rows.arguments import NgramHash, NgramRowsShape, NgramVectors
from strata.kernels.packed_rows.activations import quantize_into
from strata.kernels.packed_rows.blocks_out import store_blocks
from strata.kernels.packed_rows.decode_row import (
    TABLE_ARGUMENTS,
    decode_blocks,
    open_arrays,
    table_arguments,
    table_constants,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.tails import convolve, move_tail
from strata.kernels.window_rows import WindowRows
from strata.quant.layout import BLOCK_COLUMNS
from strata.quant.packed import PackedMatrix

COLUMNS_A_PROGRAM = 512  # of the convolution and of the commit
STREAM_VALUES_A_WARP = 512


@triton.jit
def table_row_of(
    tokens, history, multipliers, head_sizes, head_starts, row, slot, step, head, end_of_text,
    NGRAM_SIZE: tl.constexpr, HEADS_PER_NGRAM: tl.constexpr,
):  # fmt: skip
    """The table row (int64) of one head of row `row`, which is the segment's row `step`.

    From the first end-of-text on (going back), every older token counts as end-of-text.
    """
    HISTORY: tl.constexpr = NGRAM_SIZE - 1
    mixed = tl.load(tokens + row).to(tl.int64) * tl.load(multipliers)
    chosen = mixed
    is_over = step < 0
    for reach in tl.static_range(1, NGRAM_SIZE):
        new = tl.load(tokens + row - reach, mask=step >= reach, other=0)
        old = tl.load(history + slot * HISTORY + (HISTORY + step - reach), mask=step < reach, other=0)
        back = tl.where(is_over, end_of_text, tl.where(step >= reach, new, old))
        is_over = is_over | (back == end_of_text)
        mixed = mixed ^ (back.to(tl.int64) * tl.load(multipliers + reach))
        chosen = tl.where(head // HEADS_PER_NGRAM == reach - 1, mixed, chosen)
    size = tl.load(head_sizes + head)
    left = chosen % size  # of the sign of `chosen`
    return tl.where(left < 0, left + size, left) + tl.load(head_starts + head)


@triton.jit(
    do_not_specialize=[*TABLE_ARGUMENTS, "end_of_text", "row_step", "block_step"],
    do_not_specialize_on_alignment=["tokens", "slots", "first_rows", "history", "multipliers", "sizes", "starts"],
)
def gather_kernel(
    codes, scales, super_scales, mins, super_mins, t0, t1, t2, t3, offset, post_scale, columns,
    tokens, slots, first_rows, history, multipliers, sizes, starts, end_of_text,
    plain, q, records, row_step, block_step,
    NGRAM_SIZE: tl.constexpr, HEADS: tl.constexpr, BLOCKS: tl.constexpr,
    HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (HEADS, rows); BLOCKS: a power of two that holds a table row's blocks. The table comes as addresses."""
    begin_dependent()
    head, row = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        step = row - tl.load(first_rows + row)
        at_row = table_row_of(
            tokens, history, multipliers, sizes, starts, row, slot, step, head, end_of_text,
            NGRAM_SIZE, HEADS // (NGRAM_SIZE - 1),
        )  # fmt: skip
        arrays = open_arrays(codes, scales, super_scales, mins, super_mins, IS_FLOAT)
        block = tl.arange(0, BLOCKS)
        values = decode_blocks(
            arrays, (t0, t1, t2, t3), offset, post_scale, columns, at_row, block,
            CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK,
        )  # fmt: skip
        if HAS_PLAIN:
            column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
            at = (row.to(tl.int64) * HEADS + head) * columns + column
            tl.store(plain + at, values, mask=column < columns)
        if HAS_QUANTIZED:
            of_head = columns // 32
            place = tl.where(block < of_head, head * of_head + block, HEADS * of_head)
            store_blocks(values, q, records, row, place, HEADS * of_head, row_step, block_step)


@triton.jit
def mean_square(x, SIZE: tl.constexpr):
    """Of SIZE values, the others of x being 0: in every place of x."""
    return tl.broadcast_to(tl.sum(x * x, axis=0), x.shape) * (1.0 / SIZE)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def gates_kernel(
    key, value, query, key_scale, conv_scale, slots, gated, normed,
    STREAMS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, EPS: tl.constexpr, ROOT: tl.constexpr,
):  # fmt: skip
    """Grid (STREAMS, rows): gated and normed [rows, STREAMS * HIDDEN]; COLUMNS: a power of two that holds HIDDEN."""
    begin_dependent()
    stream, row = tl.program_id(0), tl.program_id(1)
    if tl.load(slots + row) >= 0:
        column = tl.arange(0, COLUMNS)
        is_inside = column < HIDDEN
        of_stream = stream * HIDDEN + column
        at = row.to(tl.int64) * (STREAMS * HIDDEN) + of_stream
        keys = tl.load(key + at, mask=is_inside, other=0.0)
        keys = keys * inverse_root(mean_square(keys, HIDDEN) + EPS)
        keys = keys * tl.load(key_scale + of_stream, mask=is_inside, other=0.0)
        product = keys * tl.load(query + at, mask=is_inside, other=0.0)
        match = tl.broadcast_to(tl.sum(product, axis=0), product.shape)
        match = tl.div_rn(match, tl.full(match.shape, ROOT, tl.float32))
        root = tl.sqrt_rn(tl.maximum(tl.abs(match), 1e-6))
        gate = tl.where(match > 0, root, tl.where(match < 0, -root, 0.0))
        values = tl.load(value + row.to(tl.int64) * HIDDEN + column, mask=is_inside, other=0.0)
        result = sigmoid(gate) * values
        tl.store(gated + at, result, mask=is_inside)
        result = result * inverse_root(mean_square(result, HIDDEN) + EPS)
        result = result * tl.load(conv_scale + of_stream, mask=is_inside, other=0.0)
        tl.store(normed + at, result, mask=is_inside)


@triton.jit(do_not_specialize_on_alignment=["slots", "first_rows"])
def convolution_kernel(
    normed, tail, taps, slots, first_rows, out,
    WIDTH: tl.constexpr, KERNEL: tl.constexpr, DILATION: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid (WIDTH / COLUMNS, rows): adds the convolution of normed [rows, WIDTH] to out, the gated values."""
    begin_dependent()
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        is_inside = column < WIDTH
        first = tl.load(first_rows + row)
        of_slot = tail + slot * ((KERNEL - 1) * DILATION * WIDTH)
        segment_rows = normed + first.to(tl.int64) * WIDTH
        added = convolve(of_slot, segment_rows, WIDTH, WIDTH, taps, row - first, column, is_inside, KERNEL, DILATION)
        at = out + row.to(tl.int64) * WIDTH + column
        tl.store(at, tl.load(at, mask=is_inside, other=0.0) + added, mask=is_inside)


@triton.jit(
    do_not_specialize=["row_count", "slot_count", "width"],
    do_not_specialize_on_alignment=["history", "tokens", "slots", "starts", "accepted"],
)
def commit_kernel(
    history, tails, normed, tokens, slots, starts, accepted, row_count, slot_count, width,
    HISTORY: tl.constexpr, ENTRIES: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid (width / COLUMNS, segments, layers); one program a segment moves its history too. ENTRIES >= HISTORY."""
    begin_dependent()
    segment, layer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    slot, count = tl.load(slots + segment).to(tl.int64), tl.load(accepted + segment)
    if (slot >= 0) & (count > 0):
        first = tl.load(starts + segment)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        tail = tails + (layer * slot_count + slot) * TAIL * width
        segment_rows = normed + (layer * row_count + first) * width
        move_tail(tail, segment_rows, width, width, count, column, column < width, TAIL)
        if (tl.program_id(0) == 0) & (layer == 0):
            entry = tl.arange(0, ENTRIES)
            exists = entry < HISTORY
            source = count + entry
            at = history + slot * HISTORY
            old = tl.load(at + source, mask=exists & (source < HISTORY), other=0)
            new = tl.load(tokens + first + source - HISTORY, mask=exists & (source >= HISTORY), other=0)
            tl.store(at + entry, tl.where(source < HISTORY, old, new), mask=exists)


def ngram_gather(rows: WindowRows, history: torch.Tensor, table: PackedMatrix, hash: NgramHash, out: RowsOut) -> None:
    """One launch; one more where a block of 32 columns holds more than one head."""
    columns = table.layout.columns
    is_cut = columns % BLOCK_COLUMNS != 0
    quantized = None if is_cut else out.quantized
    unused = history  # stands where a kernel writes nothing
    steps = (unused, unused, 0, 0) if quantized is None else quantized.arguments
    gather_kernel[(hash.heads, rows.count)](
        *table_arguments(table), rows.tokens, rows.slots, rows.first_rows, history, hash.multipliers, hash.head_sizes,
        hash.head_starts, hash.end_of_text, unused if out.plain is None else out.plain, *steps,
        NGRAM_SIZE=hash.ngram_size, HEADS=hash.heads,
        BLOCKS=triton.next_power_of_2(triton.cdiv(columns, BLOCK_COLUMNS)),
        HAS_PLAIN=out.plain is not None, HAS_QUANTIZED=quantized is not None, **table_constants(table),
        num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
    if is_cut and out.quantized is not None:
        assert out.plain is not None
        quantize_into(out.plain, out.quantized)


def ngram_finish(
    products: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: WindowRows,
    tail: torch.Tensor,
    vectors: NgramVectors,
    shape: NgramRowsShape,
    normed: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Two launches: the convolution reads the other rows' normed values. products: key, value, query_normed."""
    columns = triton.next_power_of_2(shape.hidden)
    gates_kernel[(shape.streams, rows.count)](
        *products, vectors.key_scale, vectors.conv_scale, rows.slots, out, normed,
        STREAMS=shape.streams, HIDDEN=shape.hidden, COLUMNS=columns, EPS=shape.eps, ROOT=shape.hidden**0.5,
        num_warps=min(16, max(1, columns // STREAM_VALUES_A_WARP)), enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
    convolution_kernel[(triton.cdiv(shape.width, COLUMNS_A_PROGRAM), rows.count)](
        normed, tail, vectors.conv, rows.slots, rows.first_rows, out,
        WIDTH=shape.width, KERNEL=shape.conv_kernel, DILATION=shape.dilation, COLUMNS=COLUMNS_A_PROGRAM,
        num_warps=4, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


def commit_ngram(
    history: torch.Tensor, tails: torch.Tensor, normed: torch.Tensor, rows: WindowRows, accepted: torch.Tensor
) -> None:
    """One launch for all layers."""
    layers, slots, tail_rows, width = tails.shape
    history_rows = history.shape[1]
    commit_kernel[(triton.cdiv(width, COLUMNS_A_PROGRAM), rows.segments, layers)](
        history, tails, normed, rows.tokens, rows.segment_slots, rows.segment_starts, accepted,
        rows.count, slots, width, HISTORY=history_rows, ENTRIES=triton.next_power_of_2(history_rows),
        TAIL=tail_rows, COLUMNS=COLUMNS_A_PROGRAM, num_warps=4, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
