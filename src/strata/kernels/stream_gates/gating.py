"""What is made of products: low and strengths of the shares, gates and the mean of streams. Knows no weight.

Bits are those of reference.py. Divisions are those of strata.kernels.division where their operands allow it: quarters
of both keep every reciprocal an ordinary number, for exp gives at most 2^127.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.division import divide
from strata.kernels.elementary import exp_by_polynomial, silu_times
from strata.kernels.packed_rows.blocks_out import store_blocks
from strata.kernels.stream_gates.tiles import add_halves


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    quarter = tl.full(x.shape, 0.25, tl.float32)
    return divide(quarter, (1.0 + exp_by_polynomial(-x)) * 0.25)


@triton.jit
def silu_of_quantized(x):
    """x / (1 + exp(-x)), to be quantized: the last bit of a value below 2^-98 and the sign of a zero may differ."""
    return divide(x * 0.25, (1.0 + exp_by_polynomial(-x)) * 0.25)


@triton.jit
def share_of_stream(x, STREAMS: tl.constexpr):
    """x / STREAMS."""
    return x * (1.0 / STREAMS) if (STREAMS & (STREAMS - 1)) == 0 else tl.div_rn(x, 1.0 * STREAMS)


@triton.jit
def store_block_of_shares(
    shares, width, column, end, first, row_count, plain, quantized, strengths,
    ROWS: tl.constexpr, HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr, LOW: tl.constexpr, STREAMS: tl.constexpr,
):  # fmt: skip
    """What follows from the columns column .. column + 31, before `end`, of ROWS rows of shares [row_count, width].

    silu(share / STREAMS) of the first LOW columns, 2 sigmoid(share / STREAMS) of those behind them, if there are some.
    Other programs have just written the shares: they are read past the multiprocessor's own cache.
    """
    row = first + tl.arange(0, ROWS)
    at_row = row[:, None].to(tl.int64)
    columns = column + tl.arange(0, 32)[None, :]
    exists = (row < row_count)[:, None] & (columns < end)
    share = tl.load(shares + at_row * width + columns, mask=exists, other=0.0, cache_modifier=".cg")
    share = share_of_stream(share, STREAMS)
    if column < LOW:
        if HAS_PLAIN:
            tl.store(plain + at_row * LOW + columns, silu_times(share, 1.0), mask=exists & (columns < LOW))
        if HAS_QUANTIZED:
            q, records, row_step, block_step = quantized
            block = tl.where(row < row_count, column // 32, LOW // 32)  # the number behind the last is not written
            store_blocks(silu_of_quantized(share), q, records, row, block, LOW // 32, row_step, block_step)
    if column + 32 > LOW:
        at = at_row * STREAMS + (columns - LOW)
        tl.store(strengths + at, 2.0 * sigmoid(share), mask=exists & (columns >= LOW))


@triton.jit
def load_normed(
    normed, first, row_count, part, ROWS: tl.constexpr, HIDDEN: tl.constexpr, STREAMS: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """The 32 columns of `part` in every stream of ROWS rows: [ROWS * 2^LEVELS * 32]."""
    place = tl.arange(0, ROWS * 32 << LEVELS)
    row = tl.minimum(first + place // (32 << LEVELS), row_count - 1).to(tl.int64)
    stream, column = place % (32 << LEVELS) // 32, part * 32 + place % 32
    return tl.load(normed + (row * STREAMS + stream) * HIDDEN + column, mask=stream < STREAMS, other=0.0)


@triton.jit
def store_mixed(
    product, values, mixed, quantized, first, row_count, part,
    ROWS: tl.constexpr, HIDDEN: tl.constexpr, STREAMS: tl.constexpr, LEVELS: tl.constexpr,
    HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr,
):  # fmt: skip
    """The mean over the streams of sigmoid(product) * values, both as `load_normed` gives them."""
    gated = tl.reshape(sigmoid(product) * values, (ROWS, 1 << LEVELS, 32))
    total = add_halves(tl.reshape(tl.permute(gated, (0, 2, 1)), (ROWS * 32, 1 << LEVELS)), LEVELS)
    mean = tl.reshape(share_of_stream(total, STREAMS), (ROWS, 32))
    row = first + tl.arange(0, ROWS)
    if HAS_PLAIN:
        at = row[:, None].to(tl.int64) * HIDDEN + part * 32 + tl.arange(0, 32)[None, :]
        tl.store(mixed + at, mean, mask=row[:, None] < row_count)
    if HAS_QUANTIZED:
        q, records, row_step, block_step = quantized
        block = tl.where(row < row_count, part, HIDDEN // 32)  # the number behind the last is not written
        store_blocks(mean, q, records, row, block, HIDDEN // 32, row_step, block_step)
