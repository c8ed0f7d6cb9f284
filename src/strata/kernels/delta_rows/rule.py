"""The steps of one row of a gated delta net on a GPU, shared by the window and by the commit that repeats them.

The columns of a head's state never meet before the norm behind the rule, so a program holds some of them. Knows one
row; knows no launch. Sums over a head have the order that the compiler gives a tile: the same in every kernel, because
tile and warps are the same (`cut_of`), and nothing in it depends on the number of rows.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.delta_rows.arguments import DeltaRowsShape
from strata.kernels.elementary import exp_by_polynomial, inverse_root, sigmoid, softplus
from strata.kernels.tails import convolve

STATE_COLUMNS = 16  # of a program: rows of a state are then read in runs of 64 bytes
STATE_VALUES_A_WARP = 2048  # 64 registers a thread; a published head's columns are one warp, without a barrier


@triton.jit
def unit_query_and_key(
    segment_rows, conv_tail, conv, step, key_head,
    KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, WIDTH: tl.constexpr, CONV_WIDTH: tl.constexpr, KERNEL: tl.constexpr,
):  # fmt: skip
    """Query and key [KEY_DIM] of one row, convolved and of length 1, the query times KEY_DIM^-0.5."""
    of_both = tl.arange(0, 2 * KEY_DIM)
    column = of_both // KEY_DIM * (KEY_HEADS * KEY_DIM) + key_head * KEY_DIM + of_both % KEY_DIM
    both = convolve(conv_tail, segment_rows, WIDTH, CONV_WIDTH, conv, step, column, of_both >= 0, KERNEL, 1)
    both = tl.reshape(both, (2, KEY_DIM))
    both = both * inverse_root(tl.sum(both * both, axis=1, keep_dims=True) + 1e-6)
    query, key = tl.split(tl.trans(both))
    return query * (KEY_DIM**-0.5), key


@triton.jit
def value_and_gates(
    segment_rows, conv_tail, vectors, step, head, of_value,
    VALUE_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, WIDTH: tl.constexpr, CONV_WIDTH: tl.constexpr,
    KERNEL: tl.constexpr,
):  # fmt: skip
    """Columns of one row's value, of_value's shape, and its head's beta and decay [1]."""
    conv, decay_rate, decay_bias = vectors
    column = CONV_WIDTH - VALUE_HEADS * VALUE_DIM + head * VALUE_DIM + of_value
    value = convolve(conv_tail, segment_rows, WIDTH, CONV_WIDTH, conv, step, column, of_value >= 0, KERNEL, 1)
    one = head + tl.arange(0, 1)
    gates = segment_rows + step * WIDTH + (CONV_WIDTH + VALUE_HEADS * VALUE_DIM) + one
    b, a = tl.load(gates), tl.load(gates + VALUE_HEADS) + tl.load(decay_bias + one)
    return value, sigmoid(b), exp_by_polynomial(tl.load(decay_rate + one) * softplus(a))


@triton.jit
def rule_inputs(
    segment_rows, conv_tail, vectors, step, head, of_value,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KERNEL: tl.constexpr,
):  # fmt: skip
    """What the rule reads of one row: query and key [KEY_DIM]; columns of the value; beta and decay [1]."""
    CONV_WIDTH: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    WIDTH: tl.constexpr = CONV_WIDTH + VALUE_HEADS * VALUE_DIM + 2 * VALUE_HEADS
    query, key = unit_query_and_key(
        segment_rows, conv_tail, vectors[0], step, head // (VALUE_HEADS // KEY_HEADS),
        KEY_HEADS, KEY_DIM, WIDTH, CONV_WIDTH, KERNEL,
    )  # fmt: skip
    value, beta, decay = value_and_gates(
        segment_rows, conv_tail, vectors, step, head, of_value, VALUE_HEADS, VALUE_DIM, WIDTH, CONV_WIDTH, KERNEL
    )
    return query, key, value, beta, decay


@triton.jit
def load_inputs(
    inputs, row, head, of_value,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """The same from `inputs_kernel`."""
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    own = inputs + row.to(tl.int64) * (2 * KEYS + VALUES + 2 * VALUE_HEADS)
    of_key = head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM + tl.arange(0, KEY_DIM)
    gates = own + (2 * KEYS + VALUES + head) + tl.arange(0, 1)
    value = tl.load(own + 2 * KEYS + head * VALUE_DIM + of_value)
    return tl.load(own + of_key), tl.load(own + KEYS + of_key), value, tl.load(gates), tl.load(gates + VALUE_HEADS)


@triton.jit
def correction_of(state, key, value, beta, decay):
    """What one more row changes of what its key finds in the columns [KEY_DIM, columns] of the state: [columns]."""
    remembered = tl.sum(state * key[:, None], axis=0)
    return (value - remembered * decay) * beta


@triton.jit
def advance(state, key, correction, decay):
    """The columns after that row."""
    return state * decay[None, :] + key[:, None] * correction[None, :]


@triton.jit
def recall(before, query, key, correction, decay):
    """What the query reads of the state behind its row, from the state `before` it: no sum waits for another."""
    both = tl.sum(tl.broadcast_to((query * key)[:, None], before.shape), axis=0)
    return tl.sum(before * query[:, None], axis=0) * decay + both * correction


@triton.jit
def state_columns(KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the first COLUMNS columns of a head's state lie in it: constants of each thread, so that none is kept."""
    return tl.arange(0, KEY_DIM)[:, None] * VALUE_DIM + tl.arange(0, COLUMNS)[None, :]


def sizes_of(shape: DeltaRowsShape) -> dict[str, int]:
    """The constants that every kernel of a shape takes."""
    return {
        "KEY_HEADS": shape.key_heads,
        "VALUE_HEADS": shape.value_heads,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "KERNEL": shape.conv_kernel,
    }


def cut_of(shape: DeltaRowsShape) -> tuple[int, int]:
    """Columns of a state that a program holds, and its warps: enough for them to stay in registers."""
    columns = min(STATE_COLUMNS, shape.value_dim)
    return columns, max(1, shape.key_dim * columns // STATE_VALUES_A_WARP)
