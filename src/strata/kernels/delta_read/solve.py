"""What the rule of a read needs of each chunk before any state is known: its triangular system, solved, and its scores.

Row i of a chunk writes key_i (x) written_i, and written = solved @ (value - what the keys find in the state at the
chunk's start, decayed). `solved` is (I + below)^-1 diag(beta) with below[i, j] = beta_i <key_i, key_j> decay(j to i)
for j < i. Its entries are at most 1: later rows correct what a row wrote, and amplify nothing. Knows no state.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.delta_read.arguments import CHUNK
from strata.kernels.float_parts import add_product, in_parts, load_parts, store_parts

ROWS = tl.constexpr(CHUNK)
SMALL = tl.constexpr(16)  # blocks of the diagonal are inverted side by side up to this size: a warp's product


@triton.jit
def join_pairs(inverse, below, number, size):
    """The inverse of I + below for blocks of 2 * size of the diagonal, from that for blocks of size.

    inverse and below [.., rows, rows]; with C what of `below` lies between the blocks of each pair, it is X - X C X.
    """
    of_row, of_column = (number // size)[:, None], (number // size)[None, :]
    is_between = (of_row % 2 == 1) & (of_column == of_row - 1)
    between_high, between_low = in_parts(tl.where(is_between, below, 0.0))
    high, low = in_parts(inverse)
    zeros = tl.zeros(below.shape, tl.float32)
    right_high, right_low = in_parts(add_product(zeros, between_high, between_low, high, low))
    return inverse - add_product(zeros, high, low, right_high, right_low)


@triton.jit
def inverse_of(below):
    """(I + below)^-1 of a strictly lower triangular below [ROWS, ROWS], by blocks of 2, 4, .. ROWS of the diagonal."""
    BLOCKS: tl.constexpr = ROWS // SMALL
    block, number, small = tl.arange(0, BLOCKS), tl.arange(0, ROWS), tl.arange(0, SMALL)
    is_own = block[:, None, None, None] == block[None, None, :, None]
    blocks = tl.sum(tl.where(is_own, tl.reshape(below, (BLOCKS, SMALL, BLOCKS, SMALL)), 0.0), axis=2)
    is_pair = (small[:, None] % 2 == 1) & (small[None, :] == small[:, None] - 1)
    inverse = tl.where(small[:, None] == small[None, :], 1.0, tl.where(is_pair, -blocks, 0.0))
    inverse = join_pairs(inverse, blocks, small, 2)
    inverse = join_pairs(inverse, blocks, small, 4)
    inverse = join_pairs(inverse, blocks, small, 8)
    inverse = tl.reshape(tl.where(is_own, inverse[:, :, None, :], 0.0), (ROWS, ROWS))
    inverse = join_pairs(inverse, below, number, 16)
    return join_pairs(inverse, below, number, 32)


@triton.jit
def decay_between(high, low):
    """The decay from row j to row i of log decays since the chunk's start, in two parts [ROWS]: [i, j], 1 for j > i.

    Of rows beside each other the first difference is exact, so that small decays behind a large one are not lost.
    """
    return tl.exp(tl.minimum((high[:, None] - high[None, :]) + (low[:, None] - low[None, :]), 0.0))


@triton.jit
def solve_kernel(
    queries, keys, gates, solved, scores, low_keys, low_solved, part_gates,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """solved and scores of a chunk and value head; grid (value heads, chunks).

    A value's second part lies `low_keys` behind it in queries and keys, `low_solved` in solved and scores; kinds of
    gates lie `part_gates` apart.
    """
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    head, chunk = tl.program_id(0), tl.program_id(1)
    number = tl.arange(0, ROWS)
    first_key = chunk * (ROWS * KEYS) + head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM
    at_keys = first_key + (number[:, None] * KEYS + tl.arange(0, KEY_DIM)[None, :])
    of_head = chunk * VALUE_HEADS + head
    at_square = of_head * (ROWS * ROWS) + (number[:, None] * ROWS + number[None, :])
    own = gates + of_head * ROWS + number
    beta, since_high, since_low = tl.load(own), tl.load(own + part_gates), tl.load(own + 2 * part_gates)
    between = decay_between(since_high, since_low)
    high, low = load_parts(keys + at_keys, low_keys)
    query_high, query_low = load_parts(queries + at_keys, low_keys)
    zeros = tl.zeros((ROWS, ROWS), tl.float32)
    score = add_product(zeros, query_high, query_low, tl.trans(high), tl.trans(low)) * between
    store_parts(scores + at_square, low_solved, tl.where(number[None, :] <= number[:, None], score, 0.0))
    alike = add_product(zeros, high, low, tl.trans(high), tl.trans(low)) * between * beta[:, None]
    inverse = inverse_of(tl.where(number[None, :] < number[:, None], alike, 0.0))
    store_parts(solved + at_square, low_solved, inverse * beta[None, :])
