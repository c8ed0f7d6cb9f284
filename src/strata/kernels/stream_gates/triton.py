"""Gates over residual streams on a GPU, in one launch. Knows no checks.

A program owns 32 columns of the layer's input: the two tiles of `up` for them in every stream, for a few rows. It first
asks for its weights. Runs with `enable_fp_fusion=False`; its bits are those of reference.py.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import allow_dependents, dependent_options, wait_for_predecessor
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.joined import both_forms, rows_of
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.packed_rows.triton import arrays_of
from strata.kernels.stream_gates.gating import load_normed, store_mixed
from strata.kernels.stream_gates.groups import MOST_STEPS, load_blocks_of_tiles, product_of_group
from strata.kernels.stream_gates.tiles import float_tiles, integer_product, load_step
from strata.quant.layout import BLOCK_COLUMNS, MatrixLayout
from strata.quant.packed import PackedMatrix

MOST_WARPS = 8
LANES = 8
GROUP = 8  # rows that the matrix units take at once


@dataclass(frozen=True)
class GatesLaunch:
    """How rows are spread over programs; no choice changes a bit."""

    at_once: int  # rows of a program: 1 or 2, or on the matrix units GROUP
    on_matrix_units: bool

    @classmethod
    def of(cls, layout: MatrixLayout, rows: int) -> "GatesLaunch":
        """What is launched for a matrix `up` of this layout: the matrix units where they can be, even for one row."""
        if layout.columns <= MOST_STEPS * LANES * BLOCK_COLUMNS and not layout.code.is_float:
            return cls(GROUP, True)
        return cls(min(rows, 2), False)


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "mixed_row_step", "mixed_block_step", "row_count", "t0", "t1", "t2", "t3", "offset",
    ],
    do_not_specialize_on_alignment=["normed", "low", "low_records", "mixed", "mixed_q", "mixed_records"],
)  # fmt: skip
def stream_gates_kernel(
    codes, scales, super_scales, mins, super_mins, low, low_records, row_step, block_step, normed,
    mixed, mixed_q, mixed_records, mixed_row_step, mixed_block_step, row_count, t0, t1, t2, t3, offset, post_scale,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr,
    LOW: tl.constexpr, HIDDEN: tl.constexpr, STREAMS: tl.constexpr, LEVELS: tl.constexpr, ROWS: tl.constexpr,
    ON_MATRIX_UNITS: tl.constexpr,
):  # fmt: skip
    """mixed [rows, HIDDEN]; grid (groups of ROWS rows, HIDDEN / 32). 2^LEVELS: the number of streams, filled up."""
    part = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    TILES: tl.constexpr = 2 << LEVELS
    ROWS_OF_RESULT: tl.constexpr = ROWS if ON_MATRIX_UNITS else 1
    arrays = (codes, scales, super_scales, mins, super_mins)
    table = (t0, t1, t2, t3)
    activations = (low, low_records, row_step, block_step)
    number = tl.arange(0, TILES)[:, None, None]  # of a tile: stream * 2 + half of the 32 columns
    tile = tl.minimum(number // 2, STREAMS - 1) * (HIDDEN // 16) + part * 2 + number % 2
    allow_dependents()
    loaded = ()
    if ON_MATRIX_UNITS:
        loaded = load_blocks_of_tiles(
            arrays, table, part * 2, HIDDEN // 16, LOW // 32, STREAMS, TILES, (LOW // 32 + 7) // 8 * 8,
            CODE, SCALE, MIN, HAS_MIN, SUB_BLOCK,
        )  # fmt: skip
    elif not IS_FLOAT:
        for step in tl.static_range((LOW // 32 + 7) // 8):
            loaded += load_step(arrays, table, tile, step, LOW // 32, CODE, SCALE, MIN, HAS_MIN, SUB_BLOCK)
    wait_for_predecessor()
    values = ()
    at_rows = ()
    for r in tl.static_range(ROWS // ROWS_OF_RESULT):
        at_rows += (tl.minimum(first + r, row_count - 1),)
        values += (load_normed(normed, first + r, row_count, part, ROWS_OF_RESULT, HIDDEN, STREAMS, LEVELS),)
    if ON_MATRIX_UNITS:
        results = (
            product_of_group(loaded, activations, first, row_count, offset, LOW // 32, IS_LINEAR, HAS_MIN, SUB_BLOCK),
        )  # fmt: skip
    elif IS_FLOAT:
        results = float_tiles(arrays, low, at_rows, tile, TILES, LOW, CODE, SCALE, SUB_BLOCK)
    else:
        results = integer_product(
            loaded, activations, at_rows, offset, LOW // 32, TILES, IS_LINEAR, HAS_MIN, SUB_BLOCK
        )  # fmt: skip
    for r in tl.static_range(len(results)):
        store_mixed(
            results[r] * post_scale, values[r], mixed, (mixed_q, mixed_records, mixed_row_step, mixed_block_step),
            first + r, row_count, part, ROWS_OF_RESULT, HIDDEN, STREAMS, LEVELS, HAS_PLAIN, HAS_QUANTIZED,
        )  # fmt: skip


def stream_gates(
    low: RowsOut, normed: torch.Tensor, up: PackedMatrix, streams_count: int, mixed: RowsOut,
    launch: GatesLaunch | None = None,
) -> None:  # fmt: skip
    """See the package."""
    rows, hidden = normed.shape[0], normed.shape[1] // streams_count
    layout = up.layout
    launch = launch or GatesLaunch.of(layout, rows)
    steps, levels = decode_steps(layout), (streams_count - 1).bit_length()
    mixed_plain, mixed_quantized = both_forms(mixed)
    stream_gates_kernel[(triton.cdiv(rows, launch.at_once), hidden // BLOCK_COLUMNS)](
        *arrays_of(up), *rows_of(layout, low).arguments, normed, mixed_plain, *mixed_quantized.arguments,
        rows, *steps.table, steps.offset, up.post_scale, **steps.constants(launch.on_matrix_units),
        HAS_PLAIN=mixed.plain is not None, HAS_QUANTIZED=mixed.quantized is not None,
        LOW=layout.columns, HIDDEN=hidden, STREAMS=streams_count, LEVELS=levels, ROWS=launch.at_once,
        ON_MATRIX_UNITS=launch.on_matrix_units,
        num_warps=MOST_WARPS if launch.on_matrix_units else min(MOST_WARPS, 2 << levels),
        enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
