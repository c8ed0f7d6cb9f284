"""Commit of a gated delta net's rows on a GPU: the window's own steps once more, and the state is written.

Knows all layers and which rows were accepted; knows no output of a row. States that the window has written are not
read: their programs leave, or are not launched where there can be no others.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.delta_rows.arguments import DeltaRowsShape, DeltaStates, DeltaVectors, SegmentLengths
from strata.kernels.delta_rows.rule import advance, correction_of, cut_of, rule_inputs, sizes_of, state_columns
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.tails import move_tail
from strata.kernels.window_rows import WindowRows

TAIL_COLUMNS = 512
REGISTERS = 168  # of a thread: 12 programs share a processor instead of 8


@triton.jit(
    do_not_specialize=["row_count", "slot_count", "certain"],
    do_not_specialize_on_alignment=["decay_rate", "decay_bias", "slots", "starts", "accepted", "counts"],
)
def commit_state_kernel(
    projected, slots, starts, accepted, counts, delta, conv_tail, conv, decay_rate, decay_bias,
    row_count, slot_count, certain,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KERNEL: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid (runs of COLUMNS value columns, segments, layers): the accepted rows once more; the state is written.

    Segments of at most `certain` rows (by `counts`) are passed by: the window wrote theirs.
    """
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    CONV_WIDTH: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUES
    WIDTH: tl.constexpr = CONV_WIDTH + VALUES + 2 * VALUE_HEADS
    begin_dependent()
    segment, layer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    slot, count = tl.load(slots + segment), tl.load(accepted + segment)
    if (slot >= 0) & (count > 0) & (tl.load(counts + segment) > certain):
        first_column = tl.program_id(0) * COLUMNS
        head = first_column // VALUE_DIM
        first_value = first_column - head * VALUE_DIM
        of_value = first_value + tl.arange(0, COLUMNS)
        at_slot = layer * slot_count + slot
        at_state = delta + (at_slot * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM) + first_value
        state = tl.load(at_state + state_columns(KEY_DIM, VALUE_DIM, COLUMNS))
        segment_rows = projected + (layer * row_count + tl.load(starts + segment)) * WIDTH
        tail = conv_tail + at_slot * ((KERNEL - 1) * CONV_WIDTH)
        of_layer = layer * VALUE_HEADS
        vectors = (conv + layer * (KERNEL * CONV_WIDTH), decay_rate + of_layer, decay_bias + of_layer)
        for step in range(count):
            _, key, value, beta, decay = rule_inputs(
                segment_rows, tail, vectors, step, head, of_value, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, KERNEL
            )
            state = advance(state, key, correction_of(state, key, value, beta, decay), decay)
        tl.store(at_state + state_columns(KEY_DIM, VALUE_DIM, COLUMNS), state)


@triton.jit(
    do_not_specialize=["row_count", "slot_count", "width", "conv_width"],
    do_not_specialize_on_alignment=["slots", "starts", "accepted"],
)
def commit_tail_kernel(
    projected, slots, starts, accepted, conv_tail, row_count, slot_count, width, conv_width,
    TAIL: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid (conv_width / COLUMNS, segments, layers); the columns of `projected` [.., width] in front are convolved."""
    begin_dependent()
    segment, layer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    slot, count = tl.load(slots + segment), tl.load(accepted + segment)
    if (slot >= 0) & (count > 0):
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        segment_rows = projected + (layer * row_count + tl.load(starts + segment)) * width
        tail = conv_tail + (layer * slot_count + slot) * TAIL * conv_width
        move_tail(tail, segment_rows, width, conv_width, count, column, column < conv_width, TAIL)


def commit_delta(
    states: DeltaStates,
    projected: torch.Tensor,
    rows: WindowRows,
    lengths: SegmentLengths,
    accepted: torch.Tensor,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
) -> None:
    """Two launches for all layers: the states, which read the tails, then the tails. One if all states are written."""
    layers, slots = states.delta.shape[:2]
    where = (projected, rows.segment_slots, rows.segment_starts, accepted)
    columns, warps = cut_of(shape)
    if lengths.leave_choice:
        commit_state_kernel[(shape.value_width // columns, rows.segments, layers)](
            *where, rows.segment_counts, states.delta, states.conv_tail, vectors.conv, vectors.decay_rate,
            vectors.decay_bias, rows.count, slots, lengths.certain,
            **sizes_of(shape), COLUMNS=columns, num_warps=warps, maxnreg=REGISTERS, enable_fp_fusion=False,
            **dependent_options(),
        )  # fmt: skip
    commit_tail_kernel[(triton.cdiv(shape.conv_width, TAIL_COLUMNS), rows.segments, layers)](
        *where, states.conv_tail, rows.count, slots, shape.projected_width, shape.conv_width,
        TAIL=shape.tail_rows, COLUMNS=TAIL_COLUMNS, num_warps=4, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
