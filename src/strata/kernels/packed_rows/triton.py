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
from strata.kernels.instructions import dp4a
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.activations import Activations, activations_for
from strata.kernels.packed_rows.decode import DecodeSteps, decode_steps
from strata.kernels.packed_rows.matrix_units import integer_tile_of_groups
from strata.kernels.packed_rows.sums import MAGIC, float_of_sum, minus, open_record, sub_block_of
from strata.quant.layout import Array
from strata.quant.packed import PackedMatrix

ARRAYS = tuple(Array)


@triton.jit
def add_lanes(acc):
    """acc [8, 16] -> [16]: lanes +4, then +2, then +1."""
    a, b = tl.split(tl.permute(tl.reshape(tl.trans(acc), (16, 2, 4)), (0, 2, 1)))
    a, b = tl.split(tl.permute(tl.reshape(a + b, (16, 2, 2)), (0, 2, 1)))
    a, b = tl.split(a + b)
    return a + b


@triton.jit
def dot_half(words, q, HALF: tl.constexpr, total):
    """total [8, 16] + the exact sum over 16 columns; q: the four words of those columns, [8, 1] each."""
    for word in tl.static_range(4):
        total = dp4a(words[4 * HALF + word], tl.broadcast_to(q[word], total.shape), total)
    return total


@triton.jit
def add_block(
    acc, words, scales, minima, q, dx, low, high, offset,
    IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """One block of every lane for one row: acc [8, 16]; q pointers, dx and the sums of its halves [8, 1]."""
    q_sums = (low, high) if HALVES == 2 else (low + high,)
    q_low = ()
    q_high = ()
    for pair in tl.static_range(4):
        two = tl.load(q + pair)
        q_low += (two.to(tl.int32),)
        q_high += ((two >> 32).to(tl.int32),)
    for half in tl.static_range(HALVES):
        start = q_sums[half] * offset + MAGIC if IS_LINEAR else q_sums[half] * 0 + MAGIC
        start = tl.broadcast_to(start, acc.shape)
        if HALVES == 1:
            total = dot_half(words, q_high, 1, dot_half(words, q_low, 0, start))
        else:
            total = dot_half(words, q_low if half == 0 else q_high, half, start)
        acc = tl.fma(scales[half] * dx, float_of_sum(total), acc)
    if HAS_MIN:
        for half in tl.static_range(HALVES):
            acc = tl.fma(minima[half] * minus(dx), tl.broadcast_to(q_sums[half].to(tl.float32), acc.shape), acc)
    return acc


@triton.jit
def integer_tile(
    arrays, activations, table, offset, at_rows, tile, blocks,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One tile of 16 outputs for a tuple of rows of quantized activations: a tuple of float32 [16].

    A lane without a block reads the last one with dx = 0: it adds a zero, which changes no accumulator, because none is
    ever -0 (lanes start at +0, and a product of a sum and a factor that are not zero does not underflow).
    """
    codes, weight_scales, super_scales, mins, super_mins = arrays
    q, records, row_step, block_step = activations
    ROWS: tl.constexpr = len(at_rows)
    HALVES: tl.constexpr = 2 if SUB_BLOCK == 16 else 1
    lane, row = tl.arange(0, 8)[:, None], tl.arange(0, 16)[None, :]
    accs = (tl.zeros((8, 16), tl.float32),) * ROWS
    # One stage: with more, loads go through shared memory, which helped lists of 10 experts alone.
    for step in tl.range(0, tl.cdiv(blocks, 8), loop_unroll_factor=UNROLL, num_stages=1):
        exists = step * 8 + lane < blocks
        block = tl.minimum(step * 8 + lane, blocks - 1)
        words = CODE(codes, tile * blocks + block, row, table)
        at_super = (tile * (blocks // 8) + block // 8) * 16 + row
        scales = ()
        minima = ()
        for half in tl.static_range(HALVES):
            at = sub_block_of(tile, blocks, block, half, SUB_BLOCK) * 16 + row
            scales += (SCALE(weight_scales, at, super_scales, at_super),)
            if HAS_MIN:
                minima += (MIN(mins, at, super_mins, at_super),)
        new = ()
        for r in tl.static_range(ROWS):
            at = at_rows[r] * row_step + block * block_step
            dx, low, high = open_record(tl.load(records + at))
            dx = tl.where(exists, dx, 0.0)
            new += (
                add_block(
                    accs[r], words, scales, minima, q + at * 4, dx, low, high, offset, IS_LINEAR, HAS_MIN, HALVES
                ),
            )  # fmt: skip
        accs = new
    results = ()
    for r in tl.static_range(ROWS):
        results += (add_lanes(accs[r]),)
    return results


@triton.jit
def float_tile(
    arrays, x, at_rows, tile, columns, VALUE: tl.constexpr, SCALE: tl.constexpr, SUB_BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """One tile of 16 outputs of a float code for a tuple of rows of float32 activations: a tuple of float32 [16]."""
    codes, scales = arrays[0], arrays[1]
    ROWS: tl.constexpr = len(at_rows)
    lane, row = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    accs = (tl.zeros((16, 16), tl.float32),) * ROWS
    for step in tl.range(0, tl.cdiv(columns, 16), loop_unroll_factor=UNROLL, num_stages=1):
        exists = step * 16 + lane < columns
        column = tl.minimum(step * 16 + lane, columns - 1)
        weight = VALUE(codes, (tile * columns + column) * 16 + row)
        if SUB_BLOCK > 0:
            at = (tile * tl.cdiv(columns, SUB_BLOCK) + column // SUB_BLOCK) * 16 + row
            weight = weight * SCALE(scales, at, scales, at)
        new = ()
        for r in tl.static_range(ROWS):
            value = tl.broadcast_to(tl.load(x + at_rows[r] * columns + column), weight.shape)
            new += (tl.where(exists, tl.fma(weight, value, accs[r]), accs[r]),)
        accs = new
    results = ()
    for r in tl.static_range(ROWS):
        a, b = tl.split(tl.permute(tl.reshape(tl.trans(accs[r]), (16, 2, 8)), (0, 2, 1)))
        results += (add_lanes(tl.trans(a + b)),)
    return results


@triton.jit
def matrix_tile(
    arrays, activations, table, offset, at_rows, tile, columns,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Tile `tile` of a matrix times each activation row of the tuple `at_rows`: float32 [16] each, unscaled."""
    if IS_FLOAT:
        results = float_tile(arrays, activations[0], at_rows, tile, columns, CODE, SCALE, SUB_BLOCK, UNROLL)
    else:
        results = integer_tile(
            arrays, activations, table, offset, at_rows, tile, columns // 32,
            CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
        )  # fmt: skip
    return results


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "row_count", "outputs", "columns", "t0", "t1", "t2", "t3", "offset",
    ],
    do_not_specialize_on_alignment=["x", "records", "out"],
)  # fmt: skip
def packed_rows_kernel(
    codes, scales, super_scales, mins, super_mins, x, records, row_step, block_step, out,
    row_count, outputs, columns, t0, t1, t2, t3, offset, post_scale,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
    ON_MATRIX_UNITS: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs]; grid (groups of ROWS rows, tiles): groups of one tile run together and share its reading."""
    tile = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    arrays = (codes, scales, super_scales, mins, super_mins)
    output = tile * 16 + tl.arange(0, 16)
    activations = (x, records, row_step, block_step)
    if ON_MATRIX_UNITS:
        groups = ()
        for group in tl.static_range(ROWS // 8):
            groups += (tl.minimum(first + group * 8 + tl.arange(0, 8), row_count - 1),)
        results = integer_tile_of_groups(
            arrays, activations, (t0, t1, t2, t3), offset, groups, tile, columns // 32,
            CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
        )  # fmt: skip
        for group in tl.static_range(ROWS // 8):
            row = first + group * 8 + tl.arange(0, 8)
            at = out + row[None, :] * outputs.to(tl.int64) + output[:, None]
            tl.store(at, results[group] * post_scale, mask=(output < outputs)[:, None] & (row < row_count)[None, :])
    else:
        at_rows = ()
        for r in tl.static_range(ROWS):
            at_rows += (tl.minimum(first + r, row_count - 1),)
        results = matrix_tile(
            arrays, activations, (t0, t1, t2, t3), offset, at_rows, tile, columns,
            CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
        )  # fmt: skip
        for r in tl.static_range(ROWS):
            if first + r < row_count:
                at = out + (first + r) * outputs.to(tl.int64) + output
                tl.store(at, results[r] * post_scale, mask=output < outputs)


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
    matrix: PackedMatrix, steps: DecodeSteps, activations: Activations, rows: int, launch: LaunchShape
) -> torch.Tensor:
    """The matrix kernel alone."""
    layout = matrix.layout
    out = torch.empty(rows, layout.rows, dtype=torch.float32, device=activations.values.device)
    arrays = [array if array.numel() else matrix.codes for array in map(matrix.array, ARRAYS)]
    codes = arrays[0] if layout.code.is_float else arrays[0].view(torch.int32)
    packed_rows_kernel[(triton.cdiv(rows, launch.rows), layout.tiles)](
        codes, *arrays[1:], *activations.arguments, out,
        rows, layout.rows, layout.columns, *steps.table, steps.offset, matrix.post_scale,
        **steps.constants(launch.uses_matrix_units), **launch.arguments,
    )  # fmt: skip
    return out
