"""Gates over residual streams on a GPU, in one launch, or two for many rows. Knows no checks.

A program owns 32 columns of the layer's input: the two tiles of `up` for them in every stream, for a few rows. It first
asks for its weights. Of few rows it then makes `low` and writes it where all its threads read it; programs of the same
rows write the same bits there. Of many rows a launch before makes it once. Runs with `enable_fp_fusion=False`; its bits
are those of reference.py.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import allow_dependents, begin_dependent, dependent_options, wait_for_predecessor
from strata.kernels.expert_rows.triton import exp_by_polynomial, silu_times
from strata.kernels.packed_rows.blocks_out import store_blocks
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.stream_gates.gates_out import GatesOut
from strata.kernels.stream_gates.tiles import add_halves, add_lanes_of_tiles, add_step, float_tiles, load_step
from strata.quant.layout import BLOCK_COLUMNS, Array
from strata.quant.packed import PackedMatrix

MOST_WARPS = 8
MOST_ROWS_ALONE = 3  # in the published model 240 programs of one row, which a large GPU runs at once
MOST_ROWS_IN_ONE_LAUNCH = 8  # beyond, programs come one after another, and each would make `low` again


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return tl.div_rn(1.0, 1.0 + exp_by_polynomial(-x))


@triton.jit
def store_low(
    shares, activations, row,
    IS_FLOAT: tl.constexpr, LOW: tl.constexpr, LOW_BLOCKS: tl.constexpr, WIDTH: tl.constexpr, STREAMS: tl.constexpr,
):  # fmt: skip
    """silu(shares / STREAMS) of one row of shares [rows, WIDTH], as the product reads it."""
    low, records, row_step, block_step = activations
    block = tl.arange(0, LOW_BLOCKS)
    column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    share = tl.load(shares + row.to(tl.int64) * WIDTH + column, mask=column < LOW, other=0.0)
    values = silu_times(tl.div_rn(share, 1.0 * STREAMS), 1.0)
    if IS_FLOAT:
        tl.store(low + row.to(tl.int64) * LOW + column, values, mask=column < LOW)
    else:
        store_blocks(values, low, records, row, block, LOW // 32, row_step, block_step)


@triton.jit(
    do_not_specialize=["row_step", "block_step"], do_not_specialize_on_alignment=["shares", "low", "low_records"]
)
def low_kernel(
    shares, low, low_records, row_step, block_step,
    IS_FLOAT: tl.constexpr, LOW: tl.constexpr, LOW_BLOCKS: tl.constexpr, WIDTH: tl.constexpr, STREAMS: tl.constexpr,
):  # fmt: skip
    """Grid (rows)."""
    begin_dependent()
    activations = (low, low_records, row_step, block_step)
    store_low(shares, activations, tl.program_id(0), IS_FLOAT, LOW, LOW_BLOCKS, WIDTH, STREAMS)


@triton.jit
def strength_shares(shares, row, group, LOW: tl.constexpr, STREAMS: tl.constexpr, LEVELS: tl.constexpr):
    """The last STREAMS shares of one row [LOW + STREAMS], in the programs of group 0."""
    stream = tl.arange(0, 1 << LEVELS)
    is_read = group * (1 << LEVELS) + stream < STREAMS
    return tl.load(shares + row.to(tl.int64) * (LOW + STREAMS) + LOW + stream, mask=is_read, other=0.0)


@triton.jit
def store_strengths(share, strengths, row, group, STREAMS: tl.constexpr, LEVELS: tl.constexpr):
    """2 sigmoid(share / STREAMS), by the programs of group 0."""
    stream = tl.arange(0, 1 << LEVELS)
    value = 2.0 * sigmoid(tl.div_rn(share, 1.0 * STREAMS))
    is_written = group * (1 << LEVELS) + stream < STREAMS
    tl.store(strengths + row.to(tl.int64) * STREAMS + stream, value, mask=is_written)


@triton.jit
def integer_product(
    loaded, activations, at_rows, offset,
    BLOCKS: tl.constexpr, TILES: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """Tiles of an integer code, `loaded` for every step, times each row's low: float32 [tiles * 16] each."""
    ROWS: tl.constexpr = len(at_rows)
    results = ()
    for r in tl.static_range(ROWS):
        acc = tl.zeros((TILES, 8, 16), tl.float32)
        for step in tl.static_range((BLOCKS + 7) // 8):
            acc = add_step(
                acc, loaded, activations, at_rows[r], offset, step, BLOCKS, IS_LINEAR, HAS_MIN, SUB_BLOCK
            )  # fmt: skip
        results += (add_lanes_of_tiles(acc, 3),)
    return results


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "mixed_row_step", "mixed_block_step", "row_count", "t0", "t1", "t2", "t3", "offset",
    ],
    do_not_specialize_on_alignment=[
        "shares", "normed", "low", "low_records", "mixed", "mixed_q", "mixed_records", "strengths",
    ],
)  # fmt: skip
def stream_gates_kernel(
    codes, scales, super_scales, mins, super_mins, shares, normed, low, low_records, row_step, block_step,
    mixed, mixed_q, mixed_records, mixed_row_step, mixed_block_step, strengths,
    row_count, t0, t1, t2, t3, offset, post_scale,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
    HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr, HAS_STRENGTHS: tl.constexpr,
    LOW: tl.constexpr, LOW_BLOCKS: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr,
    STREAMS: tl.constexpr, LEVELS: tl.constexpr, ROWS: tl.constexpr, MAKES_LOW: tl.constexpr,
):  # fmt: skip
    """mixed [rows, HIDDEN]; grid (groups of ROWS rows, HIDDEN / 32). 2^LEVELS is the number of streams, filled up.

    MAKES_LOW: `low` is only room; otherwise it holds the rows' low.
    """
    group = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    TILES: tl.constexpr = 2 << LEVELS
    arrays = (codes, scales, super_scales, mins, super_mins)
    activations = (low, low_records, row_step, block_step)
    number = tl.arange(0, TILES)[:, None, None]  # of a tile: stream * 2 + half of the 32 columns
    tile = tl.minimum(number // 2, STREAMS - 1) * (HIDDEN // 16) + group * 2 + number % 2
    allow_dependents()
    loaded = ()
    if not IS_FLOAT:
        for step in tl.static_range((LOW // 32 + 7) // 8):
            loaded += load_step(
                arrays, (t0, t1, t2, t3), tile, step, LOW // 32, CODE, SCALE, MIN, HAS_MIN, SUB_BLOCK
            )  # fmt: skip
    wait_for_predecessor()
    place = tl.arange(0, TILES * 16)  # stream * 32 + column
    stream, column = place // 32, group * 32 + place % 32
    at_rows = ()
    values = ()
    opening = ()  # asked for here, because the programs that write strengths would otherwise end last
    for r in tl.static_range(ROWS):
        row = tl.minimum(first + r, row_count - 1)
        at_rows += (row,)
        at = normed + (row.to(tl.int64) * STREAMS + stream) * HIDDEN + column
        values += (tl.load(at, mask=stream < STREAMS, other=0.0),)
        if HAS_STRENGTHS:
            opening += (strength_shares(shares, row, group, LOW, STREAMS, LEVELS),)
    if MAKES_LOW:
        for r in tl.static_range(ROWS):
            store_low(shares, activations, at_rows[r], IS_FLOAT, LOW, LOW_BLOCKS, WIDTH, STREAMS)
        tl.debug_barrier()
    if IS_FLOAT:
        results = float_tiles(arrays, low, at_rows, tile, TILES, LOW, CODE, SCALE, SUB_BLOCK)
    else:
        results = integer_product(
            loaded, activations, at_rows, offset, LOW // 32, TILES, IS_LINEAR, HAS_MIN, SUB_BLOCK
        )  # fmt: skip
    for r in tl.static_range(ROWS):
        if first + r < row_count:
            gated = sigmoid(results[r] * post_scale) * values[r]
            total = add_halves(tl.permute(tl.reshape(gated, (TILES // 2, 32)), (1, 0)), LEVELS)
            mean = tl.div_rn(total, 1.0 * STREAMS)
            if HAS_PLAIN:
                tl.store(mixed + at_rows[r].to(tl.int64) * HIDDEN + group * 32 + tl.arange(0, 32), mean)
            if HAS_QUANTIZED:
                store_blocks(
                    tl.reshape(mean, (1, 32)), mixed_q, mixed_records, at_rows[r],
                    tl.full((1,), 0, tl.int32) + group, HIDDEN // 32, mixed_row_step, mixed_block_step,
                )  # fmt: skip
            if HAS_STRENGTHS:
                store_strengths(opening[r], strengths, at_rows[r], group, STREAMS, LEVELS)


def rows_at_once(rows: int) -> int:
    """Rows of one program: two share their reading of the weights where there are many; four do not fit registers."""
    return 1 if rows <= MOST_ROWS_ALONE else 2


def stream_gates(
    shares: torch.Tensor, normed: torch.Tensor, up: PackedMatrix, streams_count: int, out: GatesOut,
    at_once: int | None = None,
) -> None:  # fmt: skip
    """One launch, or two for many rows; `at_once` rows a program, which changes no bit."""
    rows, hidden = normed.shape[0], normed.shape[1] // streams_count
    layout = up.layout
    steps = decode_steps(layout)
    levels = (streams_count - 1).bit_length()
    at_once = at_once or rows_at_once(rows)
    arrays = [array if array.numel() else up.codes for array in map(up.array, Array)]
    codes = arrays[0] if layout.code.is_float else arrays[0].view(torch.int32)
    mixed = (shares, shares, 0, 0) if out.mixed.quantized is None else out.mixed.quantized.arguments
    low = _low_arguments(out.low, layout.code.is_float)
    sizes = {
        "LOW": layout.columns, "LOW_BLOCKS": triton.next_power_of_2(triton.cdiv(layout.columns, BLOCK_COLUMNS)),
        "WIDTH": shares.shape[1], "STREAMS": streams_count,
        "num_warps": min(MOST_WARPS, 2 << levels), "enable_fp_fusion": False, **dependent_options(),
    }  # fmt: skip
    makes_low = rows <= MOST_ROWS_IN_ONE_LAUNCH
    if not makes_low:
        low_kernel[(rows,)](shares, *low, IS_FLOAT=layout.code.is_float, **sizes)
    stream_gates_kernel[(triton.cdiv(rows, at_once), hidden // BLOCK_COLUMNS)](
        codes, *arrays[1:], shares, normed, *low,
        shares if out.mixed.plain is None else out.mixed.plain, *mixed,
        shares if out.strengths is None else out.strengths, rows, *steps.table, steps.offset, up.post_scale,
        **steps.constants(), HAS_PLAIN=out.mixed.plain is not None, HAS_QUANTIZED=out.mixed.quantized is not None,
        HAS_STRENGTHS=out.strengths is not None,
        HIDDEN=hidden, LEVELS=levels, ROWS=at_once, MAKES_LOW=makes_low, **sizes,
    )  # fmt: skip


def _low_arguments(low: RowsOut, is_float: bool) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Values, records and steps of the rows inside the kernel, in the form that the matrix's code wants."""
    if is_float and low.plain is not None:
        return low.plain, low.plain, 0, 0
    if not is_float and low.quantized is not None:
        return low.quantized.arguments
    raise ValueError(f"out.low must be {'plain' if is_float else 'quantized'} rows for this code of up")
