"""Packed matrix times rows of activations on a GPU, added in the order of docs/storage-codes.md.

Knows tiles and lanes; knows no expert; decode.py knows the codes, activations.py the rows. Every kernel runs
with `enable_fp_fusion=False` and uses only + - *, tl.fma and tl.div_rn, so that its bits are those of the CPU.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from functools import cache

import torch
import triton
import triton.language as tl

from strata.kernels.configurations import packed_launch
from strata.kernels.dependent import allow_dependents, dependent_options, wait_for_predecessor
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.activations import Activations, activations_for
from strata.kernels.packed_rows.decode import DecodeSteps, decode_steps
from strata.kernels.packed_rows.dot_blocks import add_blocks, add_lanes, load_blocks, load_rows
from strata.kernels.packed_rows.matrix_units import integer_tile_of_groups
from strata.kernels.packed_rows.prefetch import prefetch_constants, prefetch_share
from strata.quant.layout import Array, MatrixLayout
from strata.quant.packed import PackedMatrix

ARRAYS = tuple(Array)


@triton.jit
def integer_outputs(
    arrays, activations, table, offset, at_rows, tile, row, blocks,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr, UNROLL: tl.constexpr, SIDE: tl.constexpr = 1,
):  # fmt: skip
    """Some outputs for a tuple of rows of quantized activations: a tuple of float32 [outputs].

    row [1, outputs]: the row in its tile, 0 .. 15; tile: of all of them, or [1, outputs]. SIDE blocks of each lane are
    read and summed side by side, by as many times the threads, and then added in their order. That goes through
    barriers, over which the compiler moves no load: UNROLL steps are then read before the first of them is added.
    """
    ROWS: tl.constexpr = len(at_rows)
    HALVES: tl.constexpr = 2 if SUB_BLOCK == 16 else 1
    AT_ONCE: tl.constexpr = 1 if SIDE == 1 else UNROLL
    lane = tl.arange(0, 8 * SIDE)[:, None]
    accs = (tl.zeros((8, row.shape[1]), tl.float32),) * ROWS
    # One stage: with more, loads go through shared memory, which helped lists of 10 experts alone.
    steps = tl.cdiv(blocks, 8 * SIDE * AT_ONCE)
    for step in tl.range(0, steps, loop_unroll_factor=UNROLL // AT_ONCE, num_stages=1):
        weights = ()
        of_rows = ()
        for u in tl.static_range(AT_ONCE):
            block = (step * AT_ONCE + u) * (8 * SIDE) + lane
            weights += (
                load_blocks(
                    arrays, table, tile, row, block, blocks, CODE, SCALE, MIN, HAS_MIN, SUB_BLOCK, HALVES
                ),
            )  # fmt: skip
            of_rows += (load_rows(activations, at_rows, block, blocks),)
        for u in tl.static_range(AT_ONCE):
            new = ()
            for r in tl.static_range(ROWS):
                new += (add_blocks(accs[r], weights[u], of_rows[u][r], offset, IS_LINEAR, HAS_MIN, HALVES, SIDE),)
            accs = new
    results = ()
    for r in tl.static_range(ROWS):
        results += (add_lanes(accs[r]),)
    return results


@triton.jit
def _add_columns(
    accs, arrays, x, at_rows, tile, output, columns, first, STEP: tl.constexpr, IS_WHOLE: tl.constexpr,
    VALUE: tl.constexpr, SCALE: tl.constexpr, SUB_BLOCK: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """One column of every lane, 16 * STEP + lane behind column `first`; IS_WHOLE: none is behind the last one.

    Offsets in 64 bits, to which the compiler adds STEP without an instruction.
    """
    codes, scales = arrays[0], arrays[1]
    column = first + tl.arange(0, 16)[:, None, None]
    exists = column + STEP * 16 < columns
    if not IS_WHOLE:
        column = tl.minimum(column, columns - 1 - STEP * 16)
    weight = VALUE(codes, ((tile * columns + column) * 16 + output).to(tl.int64) + STEP * 256)
    if SUB_BLOCK > 0:
        at = (tile * tl.cdiv(columns, SUB_BLOCK) + (column + STEP * 16) // SUB_BLOCK) * 16 + output
        weight = weight * SCALE(scales, at, scales, at)
    new = ()
    for r in tl.static_range(len(at_rows)):
        at_row = at_rows[r] if SIDE == 1 else at_rows[r][None, :, None]
        value = tl.broadcast_to(tl.load(x + ((at_row * columns + column).to(tl.int64) + STEP * 16)), weight.shape)
        added = tl.fma(weight, value, accs[r])
        new += (added if IS_WHOLE else tl.where(exists, added, accs[r]),)
    return new


@triton.jit
def float_outputs(
    arrays, x, at_rows, tile, row, columns, VALUE: tl.constexpr, SCALE: tl.constexpr, SUB_BLOCK: tl.constexpr,
    UNROLL: tl.constexpr, SIDE: tl.constexpr = 1,
):  # fmt: skip
    """Some outputs of a tile of a float code for a tuple of rows of float32 activations: a tuple of float32 [outputs].

    row [1, outputs]: the row in its tile, 0 .. 15. With SIDE > 1 an element of `at_rows` is int32 [SIDE], rows side by
    side in as many times the threads, which all read the same weights from the L1 cache: then float32 [SIDE, outputs].
    """
    ROWS: tl.constexpr = len(at_rows)
    OUTPUTS: tl.constexpr = row.shape[1]
    output = tl.broadcast_to(row[None, :, :], (1, SIDE, OUTPUTS))
    accs = (tl.zeros((16, SIDE, OUTPUTS), tl.float32),) * ROWS
    groups = columns // (16 * UNROLL)
    for group in tl.range(0, groups, num_stages=1):
        for step in tl.static_range(UNROLL):
            accs = _add_columns(
                accs, arrays, x, at_rows, tile, output, columns, group * (16 * UNROLL), step, True,
                VALUE, SCALE, SUB_BLOCK, SIDE,
            )  # fmt: skip
    for step in tl.range(groups * UNROLL, tl.cdiv(columns, 16), num_stages=1):
        accs = _add_columns(
            accs, arrays, x, at_rows, tile, output, columns, step * 16, 0, False, VALUE, SCALE, SUB_BLOCK, SIDE
        )
    results = ()
    for r in tl.static_range(ROWS):
        a, b = tl.split(tl.permute(tl.reshape(accs[r], (2, 8, SIDE, OUTPUTS)), (1, 2, 3, 0)))
        a, b = tl.split(tl.permute(tl.reshape(a + b, (2, 4, SIDE, OUTPUTS)), (1, 2, 3, 0)))
        a, b = tl.split(tl.permute(tl.reshape(a + b, (2, 2, SIDE, OUTPUTS)), (1, 2, 3, 0)))
        a, b = tl.split(tl.permute(a + b, (1, 2, 0)))
        results += (tl.reshape(a + b, (OUTPUTS,)) if SIDE == 1 else a + b,)
    return results


@triton.jit
def matrix_outputs(
    arrays, activations, table, offset, at_rows, tile, row, columns,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, UNROLL: tl.constexpr, SIDE: tl.constexpr = 1,
):  # fmt: skip
    """The rows `row` [1, outputs] of tile `tile` times each activation row of `at_rows`: float32 [outputs] each.

    The matrix's post scale is not in them. SIDE: see `integer_outputs` and `float_outputs`.
    """
    if IS_FLOAT:
        results = float_outputs(
            arrays, activations[0], at_rows, tile, row, columns, CODE, SCALE, SUB_BLOCK, UNROLL, SIDE
        )
    else:
        results = integer_outputs(
            arrays, activations, table, offset, at_rows, tile, row, columns // 32,
            CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL, SIDE,
        )  # fmt: skip
    return results


@triton.jit
def store_dense(
    arrays, post_scale, activations, table, offset, out, out_stride, first, row_count, number, outputs, columns,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, ON_MATRIX_UNITS: tl.constexpr, ROWS: tl.constexpr,
    UNROLL: tl.constexpr, OUTPUTS: tl.constexpr, SIDE: tl.constexpr, CODE_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
):  # fmt: skip
    """Part `number` of the outputs, OUTPUTS of them, for the rows first .. first + ROWS - 1 before `row_count`.

    out begins at the first output. Waits for the kernel before it, once it has asked for its weights.
    """
    PARTS: tl.constexpr = 16 // OUTPUTS
    tile = number // PARTS
    prefetch_share(arrays, tile, number % PARTS, columns, PARTS, CODE_BYTES, SCALE_BYTES)
    wait_for_predecessor()
    output = number * OUTPUTS + tl.arange(0, OUTPUTS)
    if ON_MATRIX_UNITS:
        tl.static_assert(OUTPUTS == 16)
        groups = ()
        for group in tl.static_range(ROWS // 8):
            groups += (tl.minimum(first + group * 8 + tl.arange(0, 8), row_count - 1),)
        results = integer_tile_of_groups(
            arrays, activations, table, offset, groups, tile, columns // 32,
            CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
        )  # fmt: skip
        for group in tl.static_range(ROWS // 8):
            row = first + group * 8 + tl.arange(0, 8)
            at = out + row[None, :].to(tl.int64) * out_stride + output[:, None]
            tl.store(at, results[group] * post_scale, mask=(output < outputs)[:, None] & (row < row_count)[None, :])
    else:
        # Rows of a float code may lie side by side in one tensor; others come one after another, each a scalar.
        TOGETHER: tl.constexpr = (SIDE if SIDE < ROWS else ROWS) if IS_FLOAT else 1
        at_rows = ()
        for r in tl.static_range(ROWS // TOGETHER):
            of_rows = first + r if TOGETHER == 1 else first + r * TOGETHER + tl.arange(0, TOGETHER)
            at_rows += (tl.minimum(of_rows, row_count - 1),)
        results = matrix_outputs(
            arrays, activations, table, offset, at_rows, tile,
            number % PARTS * OUTPUTS + tl.arange(0, OUTPUTS)[None, :], columns,
            CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL, TOGETHER if IS_FLOAT else SIDE,
        )  # fmt: skip
        for r in tl.static_range(ROWS // TOGETHER):
            if TOGETHER > 1:
                row = first + r * TOGETHER + tl.arange(0, TOGETHER)
                at = out + row[:, None].to(tl.int64) * out_stride + output[None, :]
                tl.store(at, results[r] * post_scale, mask=(row < row_count)[:, None] & (output < outputs)[None, :])
            elif first + r < row_count:
                at = out + (first + r).to(tl.int64) * out_stride + output
                tl.store(at, results[r] * post_scale, mask=output < outputs)


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "out_stride", "row_count", "outputs", "columns", "t0", "t1", "t2", "t3", "offset",
    ],
    do_not_specialize_on_alignment=["x", "records", "out"],
)  # fmt: skip
def packed_rows_kernel(
    codes, scales, super_scales, mins, super_mins, x, records, row_step, block_step, out, out_stride,
    row_count, outputs, columns, t0, t1, t2, t3, offset, post_scale,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, ON_MATRIX_UNITS: tl.constexpr, ROWS: tl.constexpr,
    UNROLL: tl.constexpr, OUTPUTS: tl.constexpr, SIDE: tl.constexpr, CODE_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs]; grid (groups of ROWS rows, parts of OUTPUTS outputs): groups of a part share its reading."""
    allow_dependents()
    store_dense(
        (codes, scales, super_scales, mins, super_mins), post_scale, (x, records, row_step, block_step),
        (t0, t1, t2, t3), offset, out, out_stride,
        tl.program_id(0) * ROWS, row_count, tl.program_id(1), outputs, columns,
        CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, ON_MATRIX_UNITS, ROWS, UNROLL,
        OUTPUTS, SIDE, CODE_BYTES, SCALE_BYTES,
    )  # fmt: skip


@cache
def device_name(device: torch.device) -> str:
    """What the table of launches calls a device; in the interpreter "cpu", which has no table."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def packed_rows(matrix: PackedMatrix, x: torch.Tensor, launch: LaunchShape | None = None) -> torch.Tensor:
    """matrix [outputs, columns] in a storage code, x float32 [rows, columns] -> float32 [rows, outputs]."""
    launch = launch or packed_launch(device_name(x.device), matrix.layout, x.shape[0])
    steps = decode_steps(matrix.layout)
    return multiply_packed(matrix, steps, activations_for(matrix.layout, x, launch), x.shape[0], launch)


def multiply_packed(
    matrix: PackedMatrix,
    steps: DecodeSteps,
    activations: Activations,
    rows: int,
    launch: LaunchShape,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The matrix kernel alone, into `out` [rows, outputs] of any row stride, or into new memory."""
    layout = matrix.layout
    if out is None:
        out = torch.empty(rows, layout.rows, dtype=torch.float32, device=activations.values.device)
    packed_rows_kernel[(triton.cdiv(rows, launch.rows), triton.cdiv(layout.rows, launch.outputs))](
        *arrays_of(matrix), *activations.arguments, out, out.stride(0),
        rows, layout.rows, layout.columns, *steps.table, steps.offset, matrix.post_scale,
        **steps.constants(launch.uses_matrix_units), **launch.options, **dense_constants(layout, launch),
        **dependent_options(),
    )  # fmt: skip
    return out


def dense_constants(layout: MatrixLayout, launch: LaunchShape) -> dict[str, int | bool]:
    """How `store_dense` is launched, beside what the code says: its constexpr arguments."""
    return launch.constants | launch.of_outputs | prefetch_constants(layout, launch)


def arrays_of(matrix: PackedMatrix) -> list[torch.Tensor]:
    """The five arrays in the kernels' order and types; the codes stand for one that there is not."""
    arrays = [array if array.numel() else matrix.codes for array in map(matrix.array, ARRAYS)]
    return [arrays[0] if matrix.layout.code.is_float else arrays[0].view(torch.int32), *arrays[1:]]
