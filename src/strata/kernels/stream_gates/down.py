"""The product before the gates on a GPU, and what is made of it, in one launch. Knows no checks and no gate.

Programs are those of packed_rows. The last of those that make a block of 32 shares for some rows turns it into a block
of `low`, or into strengths. Its wait for the others is about as long as the start of a launch, and a block is little
work: most of it is done while other programs still multiply.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from collections.abc import Sequence

import triton
import triton.language as tl

from strata.kernels.arrivals import arrives_last
from strata.kernels.configurations import packed_launch
from strata.kernels.dependent import allow_dependents, dependent_options
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.joined import both_forms, rows_of
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.packed_rows.triton import arrays_of, dense_constants, device_name, store_dense
from strata.kernels.stream_gates.gating import store_block_of_shares
from strata.kernels.stream_gates.low_out import LowOut
from strata.quant.packed import PackedMatrix


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "width", "row_count", "start", "outputs", "columns", "t0", "t1", "t2", "t3", "offset",
        "low_row_step", "low_block_step", "counters",
    ],
    do_not_specialize_on_alignment=["x", "records", "shares", "plain", "low", "low_records", "strengths", "arrivals"],
)  # fmt: skip
def gates_down_kernel(
    codes, scales, super_scales, mins, super_mins, x, records, row_step, block_step, shares, width,
    row_count, start, outputs, columns, t0, t1, t2, t3, offset, post_scale,
    plain, low, low_records, low_row_step, low_block_step, strengths, arrivals, counters,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, ON_MATRIX_UNITS: tl.constexpr, ROWS: tl.constexpr,
    UNROLL: tl.constexpr, OUTPUTS: tl.constexpr, SIDE: tl.constexpr, CODE_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr, LOW: tl.constexpr, STREAMS: tl.constexpr,
):  # fmt: skip
    """Columns start .. start + outputs - 1 of shares [rows, width]; grid as that of packed_rows_kernel.

    arrivals [rows, counters]: a group of rows counts its blocks of shares in its own line.
    """
    allow_dependents()
    group, number = tl.program_id(0), tl.program_id(1)
    store_dense(
        (codes, scales, super_scales, mins, super_mins), post_scale, (x, records, row_step, block_step),
        (t0, t1, t2, t3), offset, shares + start, width, group * ROWS, row_count, number, outputs, columns,
        CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, ON_MATRIX_UNITS, ROWS, UNROLL,
        OUTPUTS, SIDE, CODE_BYTES, SCALE_BYTES,
    )  # fmt: skip
    block = number * OUTPUTS // 32
    programs = tl.minimum(tl.cdiv(outputs - block * 32, OUTPUTS), 32 // OUTPUTS)
    if arrives_last(arrivals + group * counters + block, programs):
        store_block_of_shares(
            shares, width, start + block * 32, start + outputs, group * ROWS, row_count,
            plain, (low, low_records, low_row_step, low_block_step), strengths,
            ROWS, HAS_PLAIN, HAS_QUANTIZED, LOW, STREAMS,
        )  # fmt: skip


def gates_down(
    down: Sequence[PackedMatrix], normed: RowsOut, streams_count: int, out: LowOut, launch: LaunchShape | None = None
) -> None:
    """See the package. `launch`: of every matrix; the table's if there is none."""
    (rows, width), start = out.shares.shape, 0
    low_plain, low_quantized = both_forms(out.low)
    for matrix in down:
        layout, steps = matrix.layout, decode_steps(matrix.layout)
        chosen = launch or packed_launch(device_name(out.shares.device), layout, rows)
        gates_down_kernel[(triton.cdiv(rows, chosen.rows), triton.cdiv(layout.rows, chosen.outputs))](
            *arrays_of(matrix), *rows_of(layout, normed).arguments, out.shares, width,
            rows, start, layout.rows, layout.columns, *steps.table, steps.offset, matrix.post_scale,
            low_plain, *low_quantized.arguments,
            out.shares if out.strengths is None else out.strengths, out.arrivals, out.arrivals.shape[1],
            **steps.constants(chosen.uses_matrix_units), **chosen.options, **dense_constants(layout, chosen),
            HAS_PLAIN=out.low.plain is not None, HAS_QUANTIZED=out.low.quantized is not None,
            LOW=width if out.strengths is None else width - streams_count, STREAMS=streams_count,
            **dependent_options(),
        )  # fmt: skip
        start += layout.rows
