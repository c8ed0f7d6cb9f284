"""A layer's experts on a GPU over given buffers, the shared expert in the same launches. Nothing is allocated.

Knows blobs, the list of work and the shared expert's matrix; the programs are those of triton.py and of packed_rows.
Launches: gate, up and hidden in one where their codes allow it (gate_up_hidden.py), else in two or three; down.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from dataclasses import replace

import torch
import triton
import triton.language as tl

from strata.kernels.configurations import expert_launch, in_one_launch
from strata.kernels.dependent import (
    allow_dependents,
    begin_dependent,
    dependent_options,
    wait_for_predecessor,
)
from strata.kernels.expert_rows.buffers import ExpertBuffers, SharedExpert
from strata.kernels.expert_rows.gate_up_hidden import gate_up_hidden_into, is_possible
from strata.kernels.expert_rows.triton import (
    DOWN,
    GATE,
    UP,
    MatrixTask,
    expert_program,
    launch_for,
    listed_constants,
    of_all_tiles,
    offsets_of,
    run_matrix,
)
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.gated_mlp.triton import store_hidden
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.activations import BLOCKS_A_PROGRAM
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.joined import DenseTask, both_forms, constants_of, rows_of
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.packed_rows.triton import device_name, store_dense
from strata.quant.layout import BLOCK_COLUMNS, MatrixLayout


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "width", "entries", "places_count",
        "shared_stride", "shared_row_step", "shared_block_step", "shared_width",
    ],
    do_not_specialize_on_alignment=[
        "gate_up", "plain", "q", "records", "starts", "places",
        "shared_gate_up", "shared_plain", "shared_q", "shared_records",
    ],
)  # fmt: skip
def all_hidden_kernel(
    gate_up, plain, q, records, row_step, block_step, width, starts, entries, places, places_count,
    shared_gate_up, shared_stride, shared_plain, shared_q, shared_records, shared_row_step, shared_block_step,
    shared_width,
    TO_PLAIN: tl.constexpr, TO_QUANTIZED: tl.constexpr,
    SHARED_TO_PLAIN: tl.constexpr, SHARED_TO_QUANTIZED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of every listed place, then of the shared expert's rows.

    Grid (blocks of the wider / BLOCKS, places_count + shared rows).
    """
    begin_dependent()
    position, block = tl.program_id(1), tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    if position < places_count:
        if position < tl.load(starts + entries):
            place = tl.load(places + position)
            store_hidden(
                gate_up + place.to(tl.int64) * 2 * width, plain, q, records, place, block, width, row_step, block_step,
                TO_PLAIN, TO_QUANTIZED,
            )  # fmt: skip
    else:
        row = position - places_count
        store_hidden(
            shared_gate_up + row.to(tl.int64) * shared_stride, shared_plain, shared_q, shared_records, row, block,
            shared_width, shared_row_step, shared_block_step, SHARED_TO_PLAIN, SHARED_TO_QUANTIZED,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "parts", "outputs", "columns", "post_scale", "a0", "a1", "a2", "a3", "offset_0",
        "shared_row_step", "shared_block_step", "row_count", "shared_columns",
        "outputs_1", "b0", "b1", "b2", "b3", "offset_1",
    ],
    do_not_specialize_on_alignment=[
        "seats", "starts", "places", "x", "records", "out", "shared_x", "shared_records", "shared_out",
    ],
)  # fmt: skip
def all_down_kernel(
    blobs, stride, seats, starts, places, x, records, row_step, block_step, out, parts, outputs, columns,
    codes, scales, super_scales, mins, super_mins, post_scale, a0, a1, a2, a3, offset_0,
    shared_x, shared_records, shared_row_step, shared_block_step, shared_out, row_count, shared_columns,
    codes_1, scales_1, super_scales_1, mins_1, super_mins_1, outputs_1, b0, b1, b2, b3, offset_1, post_scale_1,
    CODE_0: tl.constexpr, SCALE_0: tl.constexpr, MIN_0: tl.constexpr, IS_FLOAT_0: tl.constexpr,
    IS_LINEAR_0: tl.constexpr, HAS_MIN_0: tl.constexpr, SUB_BLOCK_0: tl.constexpr,
    CODE_1: tl.constexpr, SCALE_1: tl.constexpr, MIN_1: tl.constexpr, IS_FLOAT_1: tl.constexpr,
    IS_LINEAR_1: tl.constexpr, HAS_MIN_1: tl.constexpr, SUB_BLOCK_1: tl.constexpr, BY_ADDRESS: tl.constexpr,
    ON_MATRIX_UNITS_0: tl.constexpr, ROWS_0: tl.constexpr, UNROLL_0: tl.constexpr, ALONE_0: tl.constexpr,
    TILES_0: tl.constexpr,
    ON_MATRIX_UNITS_1: tl.constexpr, ROWS_1: tl.constexpr, UNROLL_1: tl.constexpr, OUTPUTS_1: tl.constexpr,
    SIDE_1: tl.constexpr, CODE_BYTES_1: tl.constexpr, SCALE_BYTES_1: tl.constexpr,
):  # fmt: skip
    """Down of the shared expert (_1), for groups of ROWS_1 rows of each of its tiles, then of each entry's expert (_0).

    One axis of programs: parts of the shared matrix times its groups, then parts of an expert's times entries.
    """
    allow_dependents()
    program = tl.program_id(0)
    groups = tl.cdiv(row_count, ROWS_1)
    shared_programs = groups * tl.cdiv(outputs_1, OUTPUTS_1)
    if program < shared_programs:
        store_dense(
            (codes_1, scales_1, super_scales_1, mins_1, super_mins_1), post_scale_1,
            (shared_x, shared_records, shared_row_step, shared_block_step), (b0, b1, b2, b3), offset_1,
            shared_out, outputs_1, program % groups * ROWS_1, row_count, program // groups, outputs_1, shared_columns,
            CODE_1, SCALE_1, MIN_1, IS_FLOAT_1, IS_LINEAR_1, HAS_MIN_1, SUB_BLOCK_1,
            ON_MATRIX_UNITS_1, ROWS_1, UNROLL_1, OUTPUTS_1, SIDE_1, CODE_BYTES_1, SCALE_BYTES_1,
        )  # fmt: skip
    else:
        wait_for_predecessor()
        program -= shared_programs
        expert_program(
            blobs, stride, seats, starts, places, places, (x, records, row_step, block_step), out, outputs,
            program // parts, program % parts, parts, outputs, columns,
            (codes, scales, super_scales, mins, super_mins), post_scale, (0, 0, 0, 0, 0), (a0, a1, a2, a3), offset_0,
            CODE_0, SCALE_0, MIN_0, IS_FLOAT_0, IS_LINEAR_0, HAS_MIN_0, SUB_BLOCK_0,
            BY_ADDRESS, ON_MATRIX_UNITS_0, ROWS_0, UNROLL_0, ALONE_0, TILES_0,
        )  # fmt: skip


def expert_rows_into(
    blobs: ExpertBlobs,
    work: ExpertWork,
    x: RowsOut,
    buffers: ExpertBuffers,
    shared: SharedExpert | None,
    launch: LaunchShape | None = None,
) -> None:
    """See `strata.kernels.expert_rows.expert_rows_into`; `launch` instead of the table's, for all matrices."""
    layout = blobs.layout
    if is_possible(layout, launch or launch_for(blobs, work, GATE)):
        gate_up_hidden_into(blobs, work, x, buffers, shared, launch)
    else:
        gate_up_into(blobs, work, x, buffers.gate_up, launch)
        hidden_into(layout.gate.rows, work, buffers, shared)
    out = buffers.by_rank.view(-1, layout.down.rows)
    if shared is None:
        task = MatrixTask((DOWN,), rows_of(layout.down, buffers.hidden), work.places, out)
        run_matrix(blobs, work, task, launch)
    else:
        down_into(blobs, work, buffers, shared, launch)


def gate_up_into(
    blobs: ExpertBlobs, work: ExpertWork, x: RowsOut, out: torch.Tensor, launch: LaunchShape | None = None
) -> None:
    """out [places, 2 * width]: gate's rows, then up's; one launch where both have the same layout."""
    gate, up = blobs.layout.gate, blobs.layout.up
    if gate == up:
        run_matrix(blobs, work, MatrixTask((GATE, UP), rows_of(gate, x), work.rows, out), launch)
        return
    run_matrix(blobs, work, MatrixTask((GATE,), rows_of(gate, x), work.rows, out), launch)
    run_matrix(blobs, work, MatrixTask((UP,), rows_of(up, x), work.rows, out[:, gate.rows :]), launch)


def hidden_into(width: int, work: ExpertWork, buffers: ExpertBuffers, shared: SharedExpert | None) -> None:
    """silu(gate) * up of the routed places and of the shared expert's rows, as their down matrices read it."""
    gate_up, hidden, places = buffers.gate_up, buffers.hidden, work.places.numel()
    shared_gate_up, shared_hidden, rows = gate_up, hidden, 0
    if shared is not None:
        assert buffers.shared_hidden is not None  # checked by the caller
        shared_gate_up, shared_hidden, rows = shared.gate_up, buffers.shared_hidden, shared.gate_up.shape[0]
    shared_width = shared_gate_up.shape[1] // 2
    (plain, quantized), (shared_plain, shared_quantized) = both_forms(hidden), both_forms(shared_hidden)
    widest = max(width, shared_width)
    all_hidden_kernel[(triton.cdiv(widest, BLOCK_COLUMNS * BLOCKS_A_PROGRAM), places + rows)](
        gate_up, plain, *quantized.arguments, width, work.starts, work.seats.numel(), work.places, places,
        shared_gate_up, shared_gate_up.stride(0), shared_plain, *shared_quantized.arguments, shared_width,
        TO_PLAIN=hidden.plain is not None, TO_QUANTIZED=hidden.quantized is not None,
        SHARED_TO_PLAIN=shared_hidden.plain is not None, SHARED_TO_QUANTIZED=shared_hidden.quantized is not None,
        BLOCKS=BLOCKS_A_PROGRAM, num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


def down_into(
    blobs: ExpertBlobs,
    work: ExpertWork,
    buffers: ExpertBuffers,
    shared: SharedExpert,
    launch: LaunchShape | None = None,
) -> None:
    """Down of the listed experts and of the shared one, in one launch."""
    assert buffers.shared_rows is not None and buffers.shared_hidden is not None  # checked by the caller
    layout, rows = blobs.layout.down, buffers.shared_rows.shape[0]
    both = (layout, shared.down.layout)
    of_experts, of_shared = launches_of_down(blobs, work, shared, rows, launch)
    task, steps = DenseTask(shared.down, of_shared), decode_steps(layout)
    parts = triton.cdiv(layout.tiles, of_experts.tiles)
    all_down_kernel[(task.programs(rows) + parts * work.seats.numel(),)](
        blobs.memory if blobs.addresses is None else blobs.addresses, blobs.stride,
        work.seats, work.starts, work.places, *rows_of(layout, buffers.hidden).arguments, buffers.by_rank,
        parts, layout.rows, layout.columns, *offsets_of(blobs.layout, DOWN), *steps.table, steps.offset,
        *rows_of(both[1], buffers.shared_hidden).arguments, buffers.shared_rows, rows, both[1].columns, *task.arguments,
        **experts_constants(layout, of_experts), **task.constants("1"), BY_ADDRESS=blobs.addresses is not None,
        **of_experts.options, **dependent_options(),
    )  # fmt: skip


def experts_constants(layout: MatrixLayout, launch: LaunchShape) -> dict[str, object]:
    """Constexpr arguments of `all_down_kernel` for the listed experts."""
    more = {f"{name}_0": value for name, value in listed_constants(launch).items()}
    return constants_of(layout, launch, "0") | more


def launches_of_down(
    blobs: ExpertBlobs, work: ExpertWork, shared: SharedExpert, rows: int, launch: LaunchShape | None
) -> list[LaunchShape]:
    """Of the experts and of the shared one: the latter as if it were a listed expert that every row chose.

    The shared expert's weights are known before the launch, and asked for while gate and up still run.
    """
    layouts = (blobs.layout.down, shared.down.layout)
    of_experts = of_all_tiles(launch or launch_for(blobs, work, DOWN))
    device = device_name(work.seats.device)
    of_shared = expert_launch(device, layouts[1], rows, is_in_place=False, is_down=True)
    joined = in_one_launch([of_experts, of_shared], layouts)
    return [joined[0], replace(joined[1], prefetches=True)]
