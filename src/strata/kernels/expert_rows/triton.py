"""Expert rows on a GPU: gate and up, h, down, for blobs in its memory or in place in pinned host memory.

Knows the blob and the list of work; the tile of a matrix and its order of additions are in packed_rows/triton.py.
Four launches: quantize x, gate and up, h (quantized again), down. Nothing here waits for the host.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.kernels.configurations import expert_launch
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.activations import (
    BLOCKS_A_PROGRAM,
    Activations,
    activations_for,
    store_quantized,
)
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.matrix_units import integer_tile_of_groups
from strata.kernels.packed_rows.triton import device_name, matrix_outputs
from strata.quant.layout import BLOCK_COLUMNS, Array, BlobLayout, MatrixLayout

HIDDEN_A_PROGRAM = BLOCKS_A_PROGRAM * BLOCK_COLUMNS
GATE, UP, DOWN = range(3)


@triton.jit
def exp_by_polynomial(x):
    """The exp of expert_rows/reference.py, by multiply, add and fma only."""
    x = tl.minimum(tl.maximum(x, -87.0), 88.0)
    n = (x * 1.44269504 + 12582912.0) - 12582912.0
    zero = tl.zeros(x.shape, tl.float32)
    r = tl.fma(n, zero - 0.693145752, x)
    r = tl.fma(n, zero - 1.42860677e-6, r)
    p = zero + 1.0 / 720.0
    p = tl.fma(p, r, zero + 1.0 / 120.0)
    p = tl.fma(p, r, zero + 1.0 / 24.0)
    p = tl.fma(p, r, zero + 1.0 / 6.0)
    p = tl.fma(p, r, zero + 0.5)
    p = tl.fma(p, r, zero + 1.0)
    p = tl.fma(p, r, zero + 1.0)
    return p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def silu_times(gate, up):
    """(g / (1 + exp(-g))) * u."""
    return tl.div_rn(gate, 1.0 + exp_by_polynomial(-gate)) * up


@triton.jit(
    do_not_specialize=["blocks", "width", "experts", "row_step", "block_step"],
    do_not_specialize_on_alignment=["starts", "places"],
)
def hidden_quantized_kernel(
    gate_up, q, records, row_step, block_step, starts, places, experts, width, blocks, BLOCKS: tl.constexpr
):  # fmt: skip
    """gate_up float32 [places, 2 * width] -> h as quantized rows [places, ..]; grid (blocks / BLOCKS, positions)."""
    begin_dependent()
    position = tl.program_id(1)
    if position < tl.load(starts + experts):
        place = tl.load(places + position)
        block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
        element = block[:, None, None] * 32 + tl.arange(0, 2)[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
        at = gate_up + place.to(tl.int64) * 2 * width + element
        exists = (block < blocks)[:, None, None]
        gate, up = tl.load(at, mask=exists, other=0.0), tl.load(at + width, mask=exists, other=0.0)
        store_quantized(silu_times(gate, up), q, records, place, block, blocks, row_step, block_step)


@triton.jit(do_not_specialize=["width", "experts"], do_not_specialize_on_alignment=["starts", "places"])
def hidden_float_kernel(gate_up, h, starts, places, experts, width, WIDTH: tl.constexpr):
    """The same where down is stored in a float code: h float32 [places, width]; grid (width / WIDTH, positions)."""
    begin_dependent()
    position = tl.program_id(1)
    if position < tl.load(starts + experts):
        place = tl.load(places + position).to(tl.int64)
        column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
        at = gate_up + place * 2 * width + column
        gate, up = tl.load(at, mask=column < width, other=0.0), tl.load(at + width, mask=column < width, other=0.0)
        tl.store(h + place * width + column, silu_times(gate, up), mask=column < width)


@triton.jit
def store_rows(
    arrays, post_scale, activations, table, offset, out, out_stride, sources, places, first, last,
    tile, outputs, columns,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, ON_MATRIX_UNITS: tl.constexpr,
    ROWS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One tile for the positions first .. first + ROWS - 1 of the list, those before `last`."""
    output = tile * 16 + tl.arange(0, 16)
    if ON_MATRIX_UNITS:
        groups = ()
        for group in tl.static_range(ROWS // 8):
            groups += (tl.load(sources + tl.minimum(first + group * 8 + tl.arange(0, 8), last - 1)),)
        results = integer_tile_of_groups(
            arrays, activations, table, offset, groups, tile, columns // 32,
            CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
        )  # fmt: skip
        for group in tl.static_range(ROWS // 8):
            position = first + group * 8 + tl.arange(0, 8)
            place = tl.load(places + tl.minimum(position, last - 1)).to(tl.int64)
            at = out + place[None, :] * out_stride + output[:, None]
            tl.store(at, results[group] * post_scale, mask=(output < outputs)[:, None] & (position < last)[None, :])
    else:
        at_rows = ()
        for r in tl.static_range(ROWS):
            at_rows += (tl.load(sources + tl.minimum(first + r, last - 1)),)
        results = matrix_outputs(
            arrays, activations, table, offset, at_rows, tile, tl.arange(0, 16)[None, :], columns,
            CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
        )  # fmt: skip
        for r in tl.static_range(ROWS):
            if first + r < last:
                at = out + tl.load(places + first + r).to(tl.int64) * out_stride + output
                tl.store(at, results[r] * post_scale, mask=output < outputs)


@triton.jit
def expert_program(
    blobs, stride, seats, starts, sources, places, activations, out, out_stride, entry, number,
    tiles, outputs, columns, offsets, post_scale, to_second, table, offset,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
    BY_ADDRESS: tl.constexpr, ON_MATRIX_UNITS: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Tile `number` of the matrices of the expert in entry `entry`, for all of its places.

    offsets: of the arrays of the first matrix in a blob, in bytes; to_second: from there to those of the second, whose
    tiles have the numbers from `tiles` on, and whose results go `outputs` further right.
    """
    first, last = tl.load(starts + entry), tl.load(starts + entry + 1)
    if first < last:
        seat = tl.load(seats + entry).to(tl.int64)
        if BY_ADDRESS:
            blob = tl.multiple_of(tl.load(blobs + seat).to(tl.pointer_type(tl.uint8)), 64)
        else:
            blob = blobs + seat * stride
        second = (number >= tiles).to(tl.int32)
        tile = number - second * tiles
        word = tl.pointer_type(tl.uint8) if IS_FLOAT else tl.pointer_type(tl.int32)
        arrays = (
            (blob + (offsets[0] + second * to_second[0])).to(word),
            blob + (offsets[1] + second * to_second[1]),
            blob + (offsets[2] + second * to_second[2]),
            blob + (offsets[3] + second * to_second[3]),
            blob + (offsets[4] + second * to_second[4]),
        )
        factor = tl.load((blob + (post_scale + second * 4)).to(tl.pointer_type(tl.float32)))
        y = out + second * outputs
        while first < last:
            if ON_MATRIX_UNITS or (ROWS > 1 and last - first > 1):
                store_rows(
                    arrays, factor, activations, table, offset, y, out_stride, sources, places, first, last,
                    tile, outputs, columns,
                    CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, ON_MATRIX_UNITS, ROWS, UNROLL,
                )  # fmt: skip
                first += ROWS
            else:
                store_rows(
                    arrays, factor, activations, table, offset, y, out_stride, sources, places, first, last,
                    tile, outputs, columns,
                    CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, False, 1, UNROLL,
                )  # fmt: skip
                first += 1


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "out_stride", "tiles", "outputs", "columns", "post_scale",
        "t0", "t1", "t2", "t3", "offset",
    ],
    do_not_specialize_on_alignment=["seats", "starts", "sources", "places", "x", "records", "out"],
)  # fmt: skip
def expert_matrix_kernel(
    blobs, stride, seats, starts, sources, places, x, records, row_step, block_step, out, out_stride,
    tiles, outputs, columns,
    codes, scales, super_scales, mins, super_mins, post_scale,
    codes_step, scales_step, super_scales_step, mins_step, super_mins_step,
    t0, t1, t2, t3, offset,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
    BY_ADDRESS: tl.constexpr, ON_MATRIX_UNITS: tl.constexpr,
    ROWS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One matrix of each listed expert, or two of the same layout; grid (tiles of both, experts of the list).

    codes .. post_scale are byte offsets of the first matrix in a blob, the steps lead to the second, whose results go
    `outputs` further right. The activation row of place `places[i]` is `sources[i]`.
    """
    begin_dependent()
    expert_program(
        blobs, stride, seats, starts, sources, places, (x, records, row_step, block_step), out, out_stride,
        tl.program_id(1), tl.program_id(0), tiles, outputs, columns,
        (codes, scales, super_scales, mins, super_mins), post_scale,
        (codes_step, scales_step, super_scales_step, mins_step, super_mins_step), (t0, t1, t2, t3), offset,
        CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, BY_ADDRESS, ON_MATRIX_UNITS, ROWS, UNROLL,
    )  # fmt: skip


@dataclass(frozen=True)
class MatrixTask:
    """One launch of the matrix kernel: which matrices of a blob, from which activations to where."""

    matrices: tuple[int, ...]  # GATE, UP, DOWN; two only if their layouts are equal
    activations: Activations
    sources: torch.Tensor  # the activation row of each listed place
    out: torch.Tensor  # its first column is that of the first matrix


def launch_for(blobs: ExpertBlobs, work: ExpertWork, layout: MatrixLayout) -> LaunchShape:
    """The launch that the table has for one matrix of these blobs."""
    is_in_place = blobs.addresses is not None
    return expert_launch(device_name(work.seats.device), layout, work.most_rows, is_in_place)


def run_matrix(blobs: ExpertBlobs, work: ExpertWork, task: MatrixTask, launch: LaunchShape | None = None) -> None:
    """Multiply every listed expert's matrices with its rows."""
    layout = blobs.layout.matrices[task.matrices[0]]
    steps = decode_steps(layout)
    launch = launch or launch_for(blobs, work, layout)
    places = blobs.layout.places()
    first, second = places[task.matrices[0]], places[task.matrices[-1]]
    expert_matrix_kernel[(layout.tiles * len(task.matrices), work.seats.numel())](
        blobs.memory if blobs.addresses is None else blobs.addresses, blobs.stride,
        work.seats, work.starts, task.sources, work.places, *task.activations.arguments, task.out, task.out.stride(0),
        layout.tiles, layout.rows, layout.columns, *offsets_of(blobs.layout, task.matrices[0]),
        *(second[array].offset - first[array].offset for array in Array), *steps.table, steps.offset,
        **steps.constants(launch.uses_matrix_units), **launch.constants, BY_ADDRESS=blobs.addresses is not None,
        **launch.options, **dependent_options(),
    )  # fmt: skip


def offsets_of(layout: BlobLayout, matrix: int) -> list[int]:
    """Where the arrays and the post scale of one matrix begin in a blob, in bytes and the kernels' order."""
    places = layout.places()[matrix]
    return [*(places[array].offset for array in Array), layout.post_scales.offset + 4 * matrix]


def gate_and_up(
    blobs: ExpertBlobs,
    work: ExpertWork,
    activations: Activations,
    out: torch.Tensor,
    launch: LaunchShape | None = None,
) -> None:
    """out [places, 2 * width]: gate's rows, then up's; one launch where both have the same layout."""
    gate, up = blobs.layout.gate, blobs.layout.up
    if gate == up:
        run_matrix(blobs, work, MatrixTask((GATE, UP), activations, work.rows, out), launch)
        return
    run_matrix(blobs, work, MatrixTask((GATE,), activations, work.rows, out), launch)
    run_matrix(blobs, work, MatrixTask((UP,), activations, work.rows, out[:, gate.rows :]), launch)


def hidden_rows(layout: BlobLayout, work: ExpertWork, gate_up: torch.Tensor, launch: LaunchShape) -> Activations:
    """h [places, width] as down reads it, from gate_up [places, 2 * width]."""
    places, width = gate_up.shape[0], layout.gate.rows
    experts, positions = work.seats.numel(), work.places.numel()
    if layout.down.code.is_float:
        h = torch.empty(places, width, dtype=torch.float32, device=gate_up.device)
        hidden_float_kernel[(triton.cdiv(width, HIDDEN_A_PROGRAM), positions)](
            gate_up, h, work.starts, work.places, experts, width,
            WIDTH=HIDDEN_A_PROGRAM, num_warps=1, enable_fp_fusion=False, **dependent_options(),
        )  # fmt: skip
        return Activations(h, h)
    blocks = layout.down.blocks
    made = Activations.empty(places, blocks, gate_up.device, launch)
    hidden_quantized_kernel[(triton.cdiv(blocks, BLOCKS_A_PROGRAM), positions)](
        gate_up, *made.arguments, work.starts, work.places, experts, width, blocks,
        BLOCKS=BLOCKS_A_PROGRAM, num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
    return made


def expert_rows(
    blobs: ExpertBlobs, work: ExpertWork, x: torch.Tensor, out: torch.Tensor, launch: LaunchShape | None = None
) -> None:
    """x float32 [rows, hidden] -> the listed places of out float32 [rows, ranks, hidden]; others are left alone."""
    layout = blobs.layout
    places = x.shape[0] * work.ranks
    gate_up = torch.empty(places, 2 * layout.gate.rows, dtype=torch.float32, device=x.device)
    activations = activations_for(layout.gate, x, launch or launch_for(blobs, work, layout.gate))
    gate_and_up(blobs, work, activations, gate_up, launch)
    h = hidden_rows(layout, work, gate_up, launch or launch_for(blobs, work, layout.down))
    run_matrix(blobs, work, MatrixTask((DOWN,), h, work.places, out.view(places, layout.down.rows)), launch)
