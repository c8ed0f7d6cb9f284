"""The rule of a read on a GPU: chunk after chunk, with columns of a head's state held transposed in registers.

Transposed, what one product gives is the left side of the next, which a matrix unit takes from registers: no state
passes through shared memory. The columns of a state never meet here, so a program holds some. What queries recall waits
for all states: knows no query, no gate and no norm.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.delta_read.arguments import CHUNK
from strata.kernels.float_parts import add_product, in_parts, load_parts, store_parts

ROWS = tl.constexpr(CHUNK)


@triton.jit(do_not_specialize=["chunks"])
def rule_kernel(
    keys, values, gates, solved, delta, states, written, low_keys, low_solved, part_gates, low_states, chunks,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Every chunk's state and what it writes; delta [value_heads, KEY_DIM, VALUE_DIM] becomes the state behind all.

    Grid (runs of COLUMNS value columns). `written` takes the place of the values that were read for it.
    """
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    first_column = tl.program_id(0) * COLUMNS
    head = first_column // VALUE_DIM
    first_key = head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM
    number, of_value, of_key = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, KEY_DIM)
    of_keys = number[:, None] * KEYS + of_key[None, :]
    of_square = number[:, None] * ROWS + number[None, :]
    of_state = of_value[:, None] * KEY_DIM + of_key[None, :]
    at_delta = delta + head.to(tl.int64) * (KEY_DIM * VALUE_DIM) + first_column % VALUE_DIM
    at_delta = at_delta + (of_key[None, :] * VALUE_DIM + of_value[:, None])
    state = tl.load(at_delta)  # [COLUMNS, KEY_DIM]
    zeros = tl.zeros((COLUMNS, ROWS), tl.float32)
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        first_value = chunk * VALUES + first_column
        of_head = chunk * VALUE_HEADS + head
        key_high, key_low = load_parts(keys + (chunk * (ROWS * KEYS) + first_key) + of_keys, low_keys)
        solved_high, solved_low = load_parts(solved + of_head * (ROWS * ROWS) + of_square, low_solved)
        value = tl.load(values + first_value * ROWS + (of_value[:, None] * ROWS + number[None, :]))
        from_start = gates + of_head * ROWS + 3 * part_gates

        state_high, state_low = in_parts(state)
        tl.store(states + first_value * KEY_DIM + of_state, state_high)
        tl.store(states + low_states + first_value * KEY_DIM + of_state, state_low)
        found = add_product(zeros, state_high, state_low, tl.trans(key_high), tl.trans(key_low))
        wanted_high, wanted_low = in_parts(value - found * tl.load(from_start + number)[None, :])
        writes = add_product(zeros, wanted_high, wanted_low, tl.trans(solved_high), tl.trans(solved_low))
        at_written = written + first_value * (2 * ROWS) + (of_value[:, None] * (2 * ROWS) + number[None, :])
        store_parts(at_written, ROWS, writes)
        kept_high, kept_low = in_parts(writes * tl.load(from_start + part_gates + number)[None, :])
        state = add_product(state * tl.load(from_start + (ROWS - 1)), kept_high, kept_low, key_high, key_low)
    tl.store(at_delta, state)
