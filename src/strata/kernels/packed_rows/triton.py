"""Packed matrix times rows of activations on a GPU, added in the order of docs/storage-codes.md.

Knows tiles, lanes and how activations are quantized; knows no expert; decode.py knows the codes. Every kernel runs
with `enable_fp_fusion=False` and uses only + - *, tl.fma and tl.div_rn, so that its bits are those of the CPU.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.kernels.configurations import LaunchShape, packed_launch
from strata.kernels.instructions import dp4a
from strata.kernels.packed_rows.decode import DecodeSteps, decode_steps
from strata.quant.layout import BLOCK_COLUMNS, Array
from strata.quant.packed import PackedMatrix

BLOCKS_A_PROGRAM = 8  # of the quantizing kernels
ARRAYS = tuple(Array)


@triton.jit
def quantize_blocks(x):
    """x float32 [blocks, 2, 16] -> q int32 of the same shape, d [blocks], sums of the half blocks [blocks, 2]."""
    largest = tl.max(tl.max(tl.abs(x), axis=2), axis=1)
    is_zero = largest < 7.888609052210118e-31  # 2^-100
    d = tl.where(is_zero, 0.0, tl.div_rn(largest, tl.full(largest.shape, 127.0, tl.float32)))
    inverse = tl.where(is_zero, 0.0, tl.div_rn(tl.full(d.shape, 1.0, tl.float32), tl.where(is_zero, 1.0, d)))
    rounded = (x * inverse[:, None, None] + 12582912.0) - 12582912.0  # 1.5 * 2^23: to the nearest integer, ties to even
    q = tl.minimum(tl.maximum(rounded, -127.0), 127.0).to(tl.int32)
    return q, d, tl.sum(q, axis=2)


@triton.jit
def store_quantized(x, q, d, sums, row, block, blocks):
    """Quantize and write the blocks `block` [BLOCKS] of one row; sums are pairs of int16, low columns first."""
    exists = block < blocks
    values, scale, half_sums = quantize_blocks(x)
    at = row.to(tl.int64) * blocks + block
    half = tl.arange(0, 2)
    element = at[:, None, None] * 32 + half[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    tl.store(q + element, values.to(tl.int8), mask=exists[:, None, None])
    tl.store(d + at, scale, mask=exists)
    tl.store(sums + at[:, None] * 2 + half[None, :], half_sums.to(tl.int16), mask=exists[:, None])


@triton.jit(do_not_specialize=["blocks"])
def quantize_kernel(x, q, d, sums, blocks, BLOCKS: tl.constexpr):
    """x float32 [rows, blocks * 32]; grid (blocks / BLOCKS, rows)."""
    row = tl.program_id(1)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    element = tl.arange(0, 2)[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    at = (row.to(tl.int64) * blocks + block)[:, None, None] * 32 + element
    values = tl.load(x + at, mask=(block < blocks)[:, None, None], other=0.0)
    store_quantized(values, q, d, sums, row, block, blocks)


@triton.jit
def add_lanes(acc):
    """acc [8, 16] -> [16]: lanes +4, then +2, then +1."""
    a, b = tl.split(tl.permute(tl.reshape(tl.trans(acc), (16, 2, 4)), (0, 2, 1)))
    a, b = tl.split(tl.permute(tl.reshape(a + b, (16, 2, 2)), (0, 2, 1)))
    a, b = tl.split(a + b)
    return a + b


@triton.jit
def dot_half(words, q, HALF: tl.constexpr, total):
    """total [8, 16] + the exact sum over 16 columns; q [8, 1] points at the first int32 of each lane's block."""
    for word in tl.static_range(4 * HALF, 4 * HALF + 4):
        total = dp4a(words[word], tl.broadcast_to(tl.load(q + word), total.shape), total)
    return total


@triton.jit
def add_block(
    acc, words, scales, minima, q, dx, sums, offset,
    IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """One block of every lane for one row: acc [8, 16], q pointers [8, 1], dx [8, 1], sums [8, 1] of two int16."""
    low, high = (sums << 16) >> 16, sums >> 16
    q_sums = (low, high) if HALVES == 2 else (low + high,)
    for half in tl.static_range(HALVES):
        total = tl.broadcast_to(q_sums[half] * offset if IS_LINEAR else q_sums[half] * 0, acc.shape)
        total = dot_half(words, q, half, total)
        if HALVES == 1:
            total = dot_half(words, q, 1, total)
        acc = tl.fma(scales[half] * dx, total.to(tl.float32), acc)
    if HAS_MIN:
        minus_dx = (dx.to(tl.int32, bitcast=True) ^ -2147483648).to(tl.float32, bitcast=True)  # `-dx` would lose -0
        for half in tl.static_range(HALVES):
            acc = tl.fma(minima[half] * minus_dx, tl.broadcast_to(q_sums[half].to(tl.float32), acc.shape), acc)
    return acc


@triton.jit
def sub_block_of(tile, blocks, block, half: tl.constexpr, SUB_BLOCK: tl.constexpr):
    """The number of a block's (or a half block's) scale among those of all tiles, in units of 16 rows."""
    if SUB_BLOCK == 16:
        number = (tile * blocks + block) * 2 + half
    elif SUB_BLOCK == 32:
        number = tile * blocks + block
    else:
        number = tile * (blocks // 2) + block // 2
    return number


@triton.jit
def integer_tile(
    arrays, activations, table, offset, at_rows, tile, blocks,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of 16 outputs for a tuple of rows of quantized activations: a tuple of float32 [16]."""
    codes, weight_scales, super_scales, mins, super_mins = arrays
    q, d, sums = activations
    ROWS: tl.constexpr = len(at_rows)
    HALVES: tl.constexpr = 2 if SUB_BLOCK == 16 else 1
    lane, row = tl.arange(0, 8)[:, None], tl.arange(0, 16)[None, :]
    accs = (tl.zeros((8, 16), tl.float32),) * ROWS
    for step in tl.range(0, tl.cdiv(blocks, 8), loop_unroll_factor=UNROLL, num_stages=STAGES):
        exists = step * 8 + lane < blocks
        block = tl.minimum(step * 8 + lane, blocks - 1)  # a lane without a block reads the last one and drops it
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
            at_block = at_rows[r] * blocks + block
            acc = add_block(
                accs[r], words, scales, minima, q + at_block * 8, tl.load(d + at_block), tl.load(sums + at_block),
                offset, IS_LINEAR, HAS_MIN, HALVES,
            )  # fmt: skip
            new += (tl.where(exists, acc, accs[r]),)
        accs = new
    results = ()
    for r in tl.static_range(ROWS):
        results += (add_lanes(accs[r]),)
    return results


@triton.jit
def float_tile(
    arrays, x, at_rows, tile, columns, VALUE: tl.constexpr, SCALE: tl.constexpr, SUB_BLOCK: tl.constexpr,
    UNROLL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of 16 outputs of a float code for a tuple of rows of float32 activations: a tuple of float32 [16]."""
    codes, scales = arrays[0], arrays[1]
    ROWS: tl.constexpr = len(at_rows)
    lane, row = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    accs = (tl.zeros((16, 16), tl.float32),) * ROWS
    for step in tl.range(0, tl.cdiv(columns, 16), loop_unroll_factor=UNROLL, num_stages=STAGES):
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
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Tile `tile` of a matrix times each activation row of the tuple `at_rows`: float32 [16] each, unscaled."""
    if IS_FLOAT:
        results = float_tile(arrays, activations[0], at_rows, tile, columns, CODE, SCALE, SUB_BLOCK, UNROLL, STAGES)
    else:
        results = integer_tile(
            arrays, activations, table, offset, at_rows, tile, columns // 32,
            CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL, STAGES,
        )  # fmt: skip
    return results


@triton.jit(
    do_not_specialize=["row_count", "outputs", "columns", "t0", "t1", "t2", "t3", "offset"],
    do_not_specialize_on_alignment=["x", "d", "sums", "out"],
)
def packed_rows_kernel(
    codes, scales, super_scales, mins, super_mins, x, d, sums, out,
    row_count, outputs, columns, t0, t1, t2, t3, offset, post_scale,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs]; grid (groups of ROWS rows, tiles): groups of one tile run together and share its reading."""
    tile = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    at_rows = ()
    for r in tl.static_range(ROWS):
        at_rows += (tl.minimum(first + r, row_count - 1),)
    results = matrix_tile(
        (codes, scales, super_scales, mins, super_mins), (x, d, sums), (t0, t1, t2, t3), offset,
        at_rows, tile, columns,
        CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL, STAGES,
    )  # fmt: skip
    output = tile * 16 + tl.arange(0, 16)
    for r in tl.static_range(ROWS):
        if first + r < row_count:
            tl.store(out + (first + r) * outputs.to(tl.int64) + output, results[r] * post_scale, mask=output < outputs)


@dataclass(frozen=True)
class QuantizedRows:
    """Activations in blocks of 32: q [rows, blocks, 8 words] int32, d [rows, blocks], sums [rows, blocks] two int16."""

    q: torch.Tensor
    d: torch.Tensor
    sums: torch.Tensor

    @classmethod
    def empty(cls, rows: int, blocks: int, device: torch.device) -> "QuantizedRows":
        """Room for `rows` rows."""
        q = torch.empty(rows, blocks, 8, dtype=torch.int32, device=device)
        d = torch.empty(rows, blocks, dtype=torch.float32, device=device)
        return cls(q, d, torch.empty(rows, blocks, dtype=torch.int32, device=device))


def quantize_rows(x: torch.Tensor) -> QuantizedRows:
    """x float32 [rows, columns], columns a multiple of 32."""
    rows, blocks = x.shape[0], x.shape[1] // BLOCK_COLUMNS
    made = QuantizedRows.empty(rows, blocks, x.device)
    grid = (triton.cdiv(blocks, BLOCKS_A_PROGRAM), rows)
    quantize_kernel[grid](
        x, made.q.view(torch.int8), made.d, made.sums.view(torch.int16), blocks,
        BLOCKS=BLOCKS_A_PROGRAM, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return made


def packed_rows(matrix: PackedMatrix, x: torch.Tensor, launch: LaunchShape | None = None) -> torch.Tensor:
    """matrix [outputs, columns] in a storage code, x float32 [rows, columns] -> float32 [rows, outputs]."""
    steps = decode_steps(matrix.layout)
    if steps.constants["IS_FLOAT"]:
        activations = (x, x, x)
    else:
        quantized = quantize_rows(x)
        activations = (quantized.q, quantized.d, quantized.sums)
    return multiply_packed(matrix, steps, activations, x.shape[0], launch or packed_launch(matrix.layout, x.shape[0]))


def multiply_packed(
    matrix: PackedMatrix, steps: DecodeSteps, activations: tuple[torch.Tensor, ...], rows: int, launch: LaunchShape
) -> torch.Tensor:
    """The matrix kernel alone: activations are (q, d, sums), or three times x for a float code."""
    layout = matrix.layout
    out = torch.empty(rows, layout.rows, dtype=torch.float32, device=activations[0].device)
    arrays = [array if array.numel() else matrix.codes for array in map(matrix.array, ARRAYS)]
    codes = arrays[0] if layout.code.is_float else arrays[0].view(torch.int32)
    packed_rows_kernel[(triton.cdiv(rows, launch.rows), layout.tiles)](
        codes, *arrays[1:], *activations, out,
        rows, layout.rows, layout.columns, *steps.table, steps.offset, matrix.post_scale,
        **steps.constants, ROWS=launch.rows, UNROLL=launch.unroll, STAGES=launch.stages,
        num_warps=launch.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out
