"""What the rule of a read reads, on a GPU: convolved rows with unit norms, and gates; and the slot's convolution tail.

Row by row, but for the sums of log decays. Knows no product. A pass's rows lie on its grid: grid row g is row
`first_row + g` of the read, which has `row_count`; grid rows outside the read are zeros.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.delta_read.arguments import CHUNK
from strata.kernels.delta_read.functions import quick_silu
from strata.kernels.elementary import inverse_root, sigmoid, softplus
from strata.kernels.float_parts import store_parts
from strata.kernels.tails import load_extended, move_tail

CHUNK_ROWS = tl.constexpr(CHUNK)
GATES_AT_ONCE = 8  # heads
GATE_HEADS = tl.constexpr(GATES_AT_ONCE)


@triton.jit
def add_tap(summed, x, tap):
    """summed + x times the taps at `tap`, one for each column; rounded once."""
    return tl.fma(x.to(tl.float32), tl.broadcast_to(tl.load(tap), x.shape), summed)


@triton.jit
def convolved_head(
    projected, conv_tail, conv, row_step, row, row_count, first_column,
    DIM: tl.constexpr, CONV_WIDTH: tl.constexpr, KERNEL: tl.constexpr,
):  # fmt: skip
    """silu of DIM columns of rows `row` [ROWS], convolved: [ROWS, DIM]; zeros outside the read."""
    TAIL: tl.constexpr = KERNEL - 1
    column = first_column + tl.arange(0, DIM)[None, :]
    inside = tl.minimum(tl.maximum(row, 0), row_count - 1)[:, None]
    summed = tl.zeros((row.shape[0], DIM), tl.float32)
    if tl.min(inside, axis=None) >= TAIL:
        for tap in tl.static_range(KERNEL):
            of_tap = tl.load(projected + (inside + (tap - TAIL)) * row_step + column)
            summed = add_tap(summed, of_tap, conv + tap * CONV_WIDTH + column)
    else:
        for tap in tl.static_range(KERNEL):
            at_tap = load_extended(conv_tail, projected, row_step, CONV_WIDTH, inside + tap, column, column >= 0, TAIL)
            summed = add_tap(summed, at_tap, conv + tap * CONV_WIDTH + column)
    is_row = (row >= 0) & (row < row_count)
    return tl.where(is_row[:, None], quick_silu(summed), 0.0)


@triton.jit
def store_gates(
    b_and_a, decay_rate, decay_bias, gates, row_step, part_gates, first_row, row_count, chunk, first_head,
    VALUE_HEADS: tl.constexpr,
):  # fmt: skip
    """The gates of a chunk and GATE_HEADS heads, as `DeltaReadWork` lists them; rows outside the read do nothing."""
    number, head = tl.arange(0, CHUNK_ROWS)[:, None], first_head + tl.arange(0, GATE_HEADS)[None, :]
    row = first_row + chunk * CHUNK_ROWS + number
    is_head = head < VALUE_HEADS
    is_own = is_head & (row >= 0) & (row < row_count)
    at = b_and_a + row.to(tl.int64) * row_step + head
    b = tl.load(at, mask=is_own, other=0.0).to(tl.float32)
    a = tl.load(at + VALUE_HEADS, mask=is_own, other=0.0).to(tl.float32)
    a = a + tl.load(decay_bias + head, mask=is_head, other=0.0)
    log_decay = tl.where(is_own, tl.load(decay_rate + head, mask=is_head, other=0.0) * softplus(a), 0.0)
    since = tl.cumsum(log_decay.to(tl.float64), axis=0)
    total = tl.sum(tl.where(number == CHUNK_ROWS - 1, since, 0.0), axis=0, keep_dims=True)
    high = since.to(tl.float32)
    at = gates + (chunk * VALUE_HEADS + head) * CHUNK_ROWS + number
    tl.store(at, tl.where(is_own, sigmoid(b), 0.0), mask=is_head)
    tl.store(at + part_gates, high, mask=is_head)
    tl.store(at + 2 * part_gates, (since - high.to(tl.float64)).to(tl.float32), mask=is_head)
    tl.store(at + 3 * part_gates, tl.exp(high), mask=is_head)
    tl.store(at + 4 * part_gates, tl.exp((total - since).to(tl.float32)), mask=is_head)


@triton.jit(do_not_specialize=["first_row", "row_count"], do_not_specialize_on_alignment=["decay_rate", "decay_bias"])
def inputs_kernel(
    projected, conv_tail, conv, decay_rate, decay_bias, queries, keys, values, gates, row_step, low_keys, part_gates,
    first_row, row_count,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KERNEL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Queries, keys, values and gates of all rows; grid (query, key and value heads, runs of gates; runs of ROWS rows).

    Gates are made of a whole chunk, with the first of its rows.
    """
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    CONV_WIDTH: tl.constexpr = 2 * KEYS + VALUES
    head = tl.program_id(0)
    at = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    row = first_row + at
    if head < 2 * KEY_HEADS:
        x = convolved_head(
            projected, conv_tail, conv, row_step, row, row_count, head * KEY_DIM, KEY_DIM, CONV_WIDTH, KERNEL
        )
        x = x * inverse_root(tl.sum(x * x, axis=1, keep_dims=True) + 1e-6)
        of_row = at[:, None] * KEYS + tl.arange(0, KEY_DIM)[None, :]
        if head < KEY_HEADS:
            store_parts(queries + head * KEY_DIM + of_row, low_keys, x * (KEY_DIM**-0.5))
        else:
            store_parts(keys + (head - KEY_HEADS) * KEY_DIM + of_row, low_keys, x)
    elif head < 2 * KEY_HEADS + VALUE_HEADS:
        first_value = (head - 2 * KEY_HEADS) * VALUE_DIM
        x = convolved_head(
            projected, conv_tail, conv, row_step, row, row_count, 2 * KEYS + first_value, VALUE_DIM, CONV_WIDTH, KERNEL
        )
        of_row = at // CHUNK_ROWS * (VALUES * CHUNK_ROWS) + at % CHUNK_ROWS
        of_value = first_value + tl.arange(0, VALUE_DIM)
        tl.store(values + of_row[:, None] + of_value[None, :] * CHUNK_ROWS, x)
    elif tl.program_id(1) * ROWS % CHUNK_ROWS == 0:
        chunk, first_head = tl.program_id(1) * ROWS // CHUNK_ROWS, (head - 2 * KEY_HEADS - VALUE_HEADS) * GATE_HEADS
        store_gates(
            projected + CONV_WIDTH + VALUES, decay_rate, decay_bias, gates, row_step, part_gates,
            first_row, row_count, chunk, first_head, VALUE_HEADS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["row_count"])
def tail_kernel(
    projected, conv_tail, row_step, row_count, CONV_WIDTH: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The slot's convolution tail behind the read; grid (runs of COLUMNS columns)."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    move_tail(conv_tail, projected, row_step, CONV_WIDTH, row_count, column, column < CONV_WIDTH, TAIL)
