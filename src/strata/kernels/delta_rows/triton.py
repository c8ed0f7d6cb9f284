"""Rows of a gated delta net on a GPU: what the rule reads of all rows at once, then the rule, then norm and gate.

Knows rows, heads and their order; knows no matrix. In the rule a warp takes 16 columns of a head's state for all rows
of a slot: no barrier stands in a row's way.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.delta_rows.arguments import (
    DeltaRowsShape,
    DeltaRowsWork,
    DeltaState,
    DeltaVectors,
    SegmentLengths,
)
from strata.kernels.delta_rows.commit import commit_delta
from strata.kernels.delta_rows.rule import (
    advance,
    correction_of,
    cut_of,
    load_inputs,
    recall,
    rule_inputs,
    sizes_of,
    state_columns,
    unit_query_and_key,
    value_and_gates,
)
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.elementary import inverse_root, sigmoid, silu
from strata.kernels.packed_rows.activations import quantize_into
from strata.kernels.packed_rows.blocks_out import store_blocks
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.layout import BLOCK_COLUMNS

__all__ = ["commit_delta", "delta_rows"]


@triton.jit(
    do_not_specialize_on_alignment=["decay_rate", "decay_bias", "slots", "first_rows"],
)
def inputs_kernel(
    projected, slots, first_rows, conv_tail, conv, decay_rate, decay_bias, inputs,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KERNEL: tl.constexpr,
):  # fmt: skip
    """What the rule reads of every row, of all rows at once; grid (key heads, then value heads; rows)."""
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    CONV_WIDTH: tl.constexpr = 2 * KEYS + VALUES
    WIDTH: tl.constexpr = CONV_WIDTH + VALUES + 2 * VALUE_HEADS
    begin_dependent()
    number, row = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        first = tl.load(first_rows + row)
        segment_rows = projected + first.to(tl.int64) * WIDTH
        tail = conv_tail + slot * ((KERNEL - 1) * CONV_WIDTH)
        own = inputs + row.to(tl.int64) * (CONV_WIDTH + 2 * VALUE_HEADS)
        if number < KEY_HEADS:
            query, key = unit_query_and_key(
                segment_rows, tail, conv, row - first, number, KEY_HEADS, KEY_DIM, WIDTH, CONV_WIDTH, KERNEL
            )
            of_key = number * KEY_DIM + tl.arange(0, KEY_DIM)
            tl.store(own + of_key, query)
            tl.store(own + KEYS + of_key, key)
        else:
            head, of_value = number - KEY_HEADS, tl.arange(0, VALUE_DIM)
            value, beta, decay = value_and_gates(
                segment_rows, tail, (conv, decay_rate, decay_bias), row - first, head, of_value,
                VALUE_HEADS, VALUE_DIM, WIDTH, CONV_WIDTH, KERNEL,
            )  # fmt: skip
            gates = own + (CONV_WIDTH + head) + tl.arange(0, 1)
            tl.store(own + 2 * KEYS + head * VALUE_DIM + of_value, value)
            tl.store(gates, beta)
            tl.store(gates + VALUE_HEADS, decay)


@triton.jit(
    do_not_specialize=["certain"],
    do_not_specialize_on_alignment=["decay_rate", "decay_bias", "slots", "starts", "counts"],
)
def rule_kernel(
    projected, inputs, slots, starts, counts, delta, conv_tail, conv, decay_rate, decay_bias, recalled, certain,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KERNEL: tl.constexpr, COLUMNS: tl.constexpr, HAS_INPUTS: tl.constexpr,
):  # fmt: skip
    """What queries recall -> recalled [rows, heads * VALUE_DIM]; grid (runs of COLUMNS value columns, segments).

    Segments of at most `certain` rows leave the state as it is behind their last row; a program's columns of it are
    read and written by nobody else. HAS_INPUTS: `inputs_kernel` has made what the rule reads; otherwise segments have
    one row at most.
    """
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    CONV_WIDTH: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUES
    WIDTH: tl.constexpr = CONV_WIDTH + VALUES + 2 * VALUE_HEADS
    begin_dependent()
    first_column, segment = tl.program_id(0) * COLUMNS, tl.program_id(1)
    head = first_column // VALUE_DIM
    first_value = first_column - head * VALUE_DIM
    of_value = first_value + tl.arange(0, COLUMNS)
    slot = tl.load(slots + segment).to(tl.int64)
    first, count = tl.load(starts + segment), tl.load(counts + segment)
    if (slot >= 0) & (count > 0):
        at_state = delta + (slot * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM) + first_value
        state = tl.load(at_state + state_columns(KEY_DIM, VALUE_DIM, COLUMNS))
        out = recalled + first.to(tl.int64) * VALUES + head * VALUE_DIM + of_value
        if HAS_INPUTS:
            query, key, value, beta, decay = load_inputs(
                inputs, first, head, of_value, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM
            )
            for step in range(count):
                # the next row's are on their way while this one is computed
                next_query, next_key, next_value, next_beta, next_decay = load_inputs(
                    inputs, first + tl.minimum(step + 1, count - 1), head, of_value,
                    KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM,
                )  # fmt: skip
                correction = correction_of(state, key, value, beta, decay)
                tl.store(out + step * VALUES, recall(state, query, key, correction, decay))
                state = advance(state, key, correction, decay)
                query, key = next_query, next_key
                value, beta, decay = next_value, next_beta, next_decay
        else:
            query, key, value, beta, decay = rule_inputs(
                projected + first.to(tl.int64) * WIDTH, conv_tail + slot * ((KERNEL - 1) * CONV_WIDTH),
                (conv, decay_rate, decay_bias), 0, head, of_value, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, KERNEL,
            )  # fmt: skip
            correction = correction_of(state, key, value, beta, decay)
            tl.store(out, recall(state, query, key, correction, decay))
            state = advance(state, key, correction, decay)
        if count <= certain:
            tl.store(at_state + state_columns(KEY_DIM, VALUE_DIM, COLUMNS), state)


@triton.jit(do_not_specialize=["row_step", "block_step"], do_not_specialize_on_alignment=["slots", "block_order"])
def finish_kernel(
    recalled, projected, slots, norm_scale, plain, q, records, row_step, block_step, block_order,
    VALUE_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, CONV_WIDTH: tl.constexpr, EPS: tl.constexpr,
    GATE_IS_SIGMOID: tl.constexpr, HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr, HAS_ORDER: tl.constexpr,
):  # fmt: skip
    """The norm of each head of recalled, times its activated gate z; grid (heads as `out` orders them, rows)."""
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    BLOCKS: tl.constexpr = VALUE_DIM // 32 if VALUE_DIM >= 32 else 1
    begin_dependent()
    place, row = tl.program_id(0), tl.program_id(1)
    if tl.load(slots + row) >= 0:
        head = tl.load(block_order + place * BLOCKS) // BLOCKS if HAS_ORDER else place
        of_head = head * VALUE_DIM + tl.arange(0, VALUE_DIM)
        x = tl.load(recalled + row.to(tl.int64) * VALUES + of_head)
        z = tl.load(projected + row.to(tl.int64) * (CONV_WIDTH + VALUES + 2 * VALUE_HEADS) + CONV_WIDTH + of_head)
        gate = sigmoid(z) if GATE_IS_SIGMOID else silu(z)
        inverse = inverse_root(tl.sum(x * x, axis=0, keep_dims=True) * (1.0 / VALUE_DIM) + EPS)
        finished = x * inverse * tl.load(norm_scale + tl.arange(0, VALUE_DIM)) * gate
        if HAS_PLAIN:
            tl.store(plain + row.to(tl.int64) * VALUES + place * VALUE_DIM + tl.arange(0, VALUE_DIM), finished)
        if HAS_QUANTIZED:
            block = place * BLOCKS + tl.arange(0, BLOCKS)
            blocks = tl.reshape(finished, (BLOCKS, 32))
            store_blocks(blocks, q, records, row, block, VALUE_HEADS * BLOCKS, row_step, block_step)


def delta_rows(
    projected: torch.Tensor,
    rows: WindowRows,
    lengths: SegmentLengths,
    state: DeltaState,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaRowsWork,
    out: RowsOut,
    block_order: torch.Tensor | None,
) -> None:
    """Two launches where no segment has a second row and the rule makes its inputs itself, otherwise three.

    One more where a block of 32 columns holds more than one head.
    """
    has_inputs = min(lengths.longest, rows.count) > 1
    sources = (state.conv_tail, vectors.conv, vectors.decay_rate, vectors.decay_bias)
    if has_inputs:
        inputs_kernel[(shape.key_heads + shape.value_heads, rows.count)](
            projected, rows.slots, rows.first_rows, *sources, work.inputs,
            **sizes_of(shape), num_warps=1, enable_fp_fusion=False, **dependent_options(),
        )  # fmt: skip
    columns, warps = cut_of(shape)
    rule_kernel[(shape.value_width // columns, rows.segments)](
        projected, work.inputs, rows.segment_slots, rows.segment_starts, rows.segment_counts, state.delta, *sources,
        work.recalled, lengths.certain, **sizes_of(shape), COLUMNS=columns, HAS_INPUTS=has_inputs,
        num_warps=warps, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
    _finish(projected, rows, vectors, shape, work, out, block_order)


def _finish(
    projected: torch.Tensor,
    rows: WindowRows,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaRowsWork,
    out: RowsOut,
    block_order: torch.Tensor | None,
) -> None:
    is_cut = shape.value_dim % BLOCK_COLUMNS != 0
    quantized = None if is_cut else out.quantized
    unused = projected  # stands where the kernel reads nothing
    steps = (unused, unused, 0, 0) if quantized is None else quantized.arguments
    finish_kernel[(shape.value_heads, rows.count)](
        work.recalled, projected, rows.slots, vectors.norm_scale, unused if out.plain is None else out.plain, *steps,
        unused if block_order is None else block_order,
        VALUE_HEADS=shape.value_heads, VALUE_DIM=shape.value_dim, CONV_WIDTH=shape.conv_width, EPS=shape.eps,
        GATE_IS_SIGMOID=shape.gate_is_sigmoid, HAS_PLAIN=out.plain is not None, HAS_QUANTIZED=quantized is not None,
        HAS_ORDER=block_order is not None, num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
    if is_cut and out.quantized is not None:
        assert out.plain is not None
        quantize_into(out.plain, out.quantized)
