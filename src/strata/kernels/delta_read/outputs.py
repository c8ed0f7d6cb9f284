"""What the queries of a read recall on a GPU, of all chunks side by side, with the norm and gate behind it.

Knows where each chunk's state lies; knows no order of chunks.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.delta_read.arguments import CHUNK
from strata.kernels.delta_read.functions import quick_sigmoid, quick_silu
from strata.kernels.elementary import inverse_root
from strata.kernels.float_parts import add_product, load_parts

ROWS = tl.constexpr(CHUNK)


@triton.jit
def recall_chunk(
    queries, scores, gates, states, written, low_keys, low_solved, part_gates, low_states, chunk, head,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """What the queries of one chunk and head find in its state and in what earlier rows wrote: [ROWS, VALUE_DIM]."""
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    number, of_value, of_key = tl.arange(0, ROWS), tl.arange(0, VALUE_DIM), tl.arange(0, KEY_DIM)
    of_head, first_value = chunk * VALUE_HEADS + head, (chunk * VALUE_HEADS + head) * VALUE_DIM
    first_query = chunk * (ROWS * KEYS) + head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM
    query_high, query_low = load_parts(queries + first_query + (number[:, None] * KEYS + of_key[None, :]), low_keys)
    of_state = of_value[:, None] * KEY_DIM + of_key[None, :]
    state_high, state_low = load_parts(states + first_value * KEY_DIM + of_state, low_states)
    recalled = tl.zeros((ROWS, VALUE_DIM), tl.float32)
    recalled = add_product(recalled, query_high, query_low, tl.trans(state_high), tl.trans(state_low))
    recalled = recalled * tl.load(gates + 3 * part_gates + of_head * ROWS + number)[:, None]
    at_score = scores + of_head * (ROWS * ROWS) + (number[:, None] * ROWS + number[None, :])
    score_high, score_low = load_parts(at_score, low_solved)
    of_written = of_value[:, None] * (2 * ROWS) + number[None, :]
    written_high, written_low = load_parts(written + first_value * (2 * ROWS) + of_written, ROWS)
    return add_product(recalled, score_high, score_low, tl.trans(written_high), tl.trans(written_low))


@triton.jit(do_not_specialize=["first_row", "row_count"], do_not_specialize_on_alignment=["block_order"])
def outputs_kernel(
    queries, scores, gates, states, written, projected, norm_scale, out, block_order,
    low_keys, low_solved, part_gates, low_states, row_step, first_row, row_count,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    EPS: tl.constexpr, GATE_IS_SIGMOID: tl.constexpr, HAS_ORDER: tl.constexpr,
):  # fmt: skip
    """The norm of what each head's queries recall, times its activated gate z; grid (heads as `out` has them, chunks).

    Row 0 of the pass is row `first_row` of the read, which has `row_count`.
    """
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    GATES: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUES
    BLOCKS: tl.constexpr = VALUE_DIM // 32 if VALUE_DIM >= 32 else 1
    place, chunk = tl.program_id(0), tl.program_id(1)
    head = tl.load(block_order + place * BLOCKS) // BLOCKS if HAS_ORDER else place
    x = recall_chunk(
        queries, scores, gates, states, written, low_keys, low_solved, part_gates, low_states, chunk, head,
        KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM,
    )  # fmt: skip
    row, of_value = first_row + chunk * ROWS + tl.arange(0, ROWS), tl.arange(0, VALUE_DIM)[None, :]
    is_row = ((row >= 0) & (row < row_count))[:, None]
    at_z = projected + row.to(tl.int64)[:, None] * row_step + (GATES + head * VALUE_DIM) + of_value
    z = tl.load(at_z, mask=is_row, other=0.0).to(tl.float32)
    gate = quick_sigmoid(z) if GATE_IS_SIGMOID else quick_silu(z)
    inverse = inverse_root(tl.sum(x * x, axis=1, keep_dims=True) * (1.0 / VALUE_DIM) + EPS)
    finished = x * inverse * tl.load(norm_scale + of_value) * gate
    at_out = out + row.to(tl.int64)[:, None] * VALUES + place * VALUE_DIM + of_value
    tl.store(at_out, finished.to(tl.bfloat16), mask=is_row)
