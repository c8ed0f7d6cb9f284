"""Matrices of listed experts on a GPU, one launch each, for blobs in its memory or in place in pinned host memory.

Knows the blob and the list of work; the tile of a matrix and its order of additions are in packed_rows/triton.py. Which
launches make a layer's experts is in window.py.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from strata.kernels.configurations import expert_launch
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.matrix_units import integer_tile_of_groups
from strata.kernels.packed_rows.rows_out import Activations
from strata.kernels.packed_rows.triton import device_name, matrix_outputs
from strata.quant.layout import Array, BlobLayout

GATE, UP, DOWN = range(3)


@triton.jit
def store_rows(
    arrays, post_scale, activations, table, offset, out, out_stride, sources, places, first, last,
    part, outputs, columns,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, ON_MATRIX_UNITS: tl.constexpr,
    ROWS: tl.constexpr, UNROLL: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Part `part` of the outputs, TILES tiles, for the positions first .. first + ROWS - 1, those before `last`."""
    output = part * (16 * TILES) + tl.arange(0, 16 * TILES)
    if ON_MATRIX_UNITS:
        tl.static_assert(TILES == 1)
        groups = ()
        for group in tl.static_range(ROWS // 8):
            groups += (tl.load(sources + tl.minimum(first + group * 8 + tl.arange(0, 8), last - 1)),)
        results = integer_tile_of_groups(
            arrays, activations, table, offset, groups, part, columns // 32,
            CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
        )  # fmt: skip
        for group in tl.static_range(ROWS // 8):
            position = first + group * 8 + tl.arange(0, 8)
            place = tl.load(places + tl.minimum(position, last - 1)).to(tl.int64)
            at = out + place[None, :] * out_stride + output[:, None]
            tl.store(at, results[group] * post_scale, mask=(output < outputs)[:, None] & (position < last)[None, :])
    else:
        at_rows = ()
        to_places = ()
        for r in tl.static_range(ROWS):
            at_rows += (tl.load(sources + tl.minimum(first + r, last - 1)),)
            to_places += (tl.load(places + tl.minimum(first + r, last - 1)),)
        last_tile = (outputs - 1) // 16
        tile = part if TILES == 1 else tl.max_constancy(tl.minimum(output // 16, last_tile)[None, :], [1, 16])
        results = matrix_outputs(
            arrays, activations, table, offset, at_rows, tile, tl.max_contiguous(output % 16, [16])[None, :], columns,
            CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
        )  # fmt: skip
        for r in tl.static_range(ROWS):
            if first + r < last:
                at = out + to_places[r].to(tl.int64) * out_stride + output
                tl.store(at, results[r] * post_scale, mask=output < outputs)


@triton.jit
def expert_program(
    blobs, stride, seats, starts, sources, places, activations, out, out_stride, entry, number,
    parts, outputs, columns, offsets, post_scale, to_second, table, offset,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, BY_ADDRESS: tl.constexpr,
    ON_MATRIX_UNITS: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr, ALONE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Part `number` of the outputs, TILES tiles, of the matrices of the expert in entry `entry`, for all of its places.

    offsets: of the arrays of the first matrix in a blob, in bytes; to_second: from there to those of the second, whose
    parts have the numbers from `parts` on, and whose results go `outputs` further right.
    """
    first, last = tl.load(starts + entry), tl.load(starts + entry + 1)
    seat = tl.load(seats + entry).to(tl.int64)
    if first < last:
        if BY_ADDRESS:
            blob = tl.multiple_of(tl.load(blobs + seat).to(tl.pointer_type(tl.uint8)), 64)
        else:
            blob = blobs + seat * stride
        second = (number >= parts).to(tl.int32)
        part = number - second * parts
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
                    part, outputs, columns,
                    CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, ON_MATRIX_UNITS, ROWS, UNROLL, TILES,
                )  # fmt: skip
                first += ROWS
            else:
                store_rows(
                    arrays, factor, activations, table, offset, y, out_stride, sources, places, first, last,
                    part, outputs, columns,
                    CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, False, 1, ALONE, TILES,
                )  # fmt: skip
                first += 1


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "out_stride", "parts", "outputs", "columns", "post_scale",
        "t0", "t1", "t2", "t3", "offset",
    ],
    do_not_specialize_on_alignment=["seats", "starts", "sources", "places", "x", "records", "out"],
)  # fmt: skip
def expert_matrix_kernel(
    blobs, stride, seats, starts, sources, places, x, records, row_step, block_step, out, out_stride,
    parts, outputs, columns,
    codes, scales, super_scales, mins, super_mins, post_scale,
    codes_step, scales_step, super_scales_step, mins_step, super_mins_step,
    t0, t1, t2, t3, offset,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr, BY_ADDRESS: tl.constexpr,
    ON_MATRIX_UNITS: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr, ALONE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One matrix of each listed expert, or two of the same layout; grid (parts of both, experts of the list).

    codes .. post_scale are byte offsets of the first matrix in a blob, the steps lead to the second, whose results go
    `outputs` further right. The activation row of place `places[i]` is `sources[i]`.
    """
    begin_dependent()
    expert_program(
        blobs, stride, seats, starts, sources, places, (x, records, row_step, block_step), out, out_stride,
        tl.program_id(1), tl.program_id(0), parts, outputs, columns,
        (codes, scales, super_scales, mins, super_mins), post_scale,
        (codes_step, scales_step, super_scales_step, mins_step, super_mins_step), (t0, t1, t2, t3), offset,
        CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK, BY_ADDRESS,
        ON_MATRIX_UNITS, ROWS, UNROLL, ALONE, TILES,
    )  # fmt: skip


@dataclass(frozen=True)
class MatrixTask:
    """One launch of the matrix kernel: which matrices of a blob, from which activations to where."""

    matrices: tuple[int, ...]  # GATE, UP, DOWN; two only if their layouts are equal
    activations: Activations
    sources: torch.Tensor  # the activation row of each listed place
    out: torch.Tensor  # its first column is that of the first matrix


def launch_for(blobs: ExpertBlobs, work: ExpertWork, matrix: int) -> LaunchShape:
    """The launch that the table has for one matrix of these blobs."""
    is_in_place, layout = blobs.addresses is not None, blobs.layout.matrices[matrix]
    return expert_launch(device_name(work.seats.device), layout, work.most_rows, is_in_place, matrix == DOWN)


def of_all_tiles(launch: LaunchShape) -> LaunchShape:
    """The launch of a program: the warps of all its tiles."""
    return replace(launch, warps=launch.warps * launch.tiles)


def listed_constants(launch: LaunchShape) -> dict[str, int | bool]:
    """Constexpr arguments of `expert_program` that a launch decides."""
    return launch.constants | {"ALONE": launch.alone or launch.unroll, "TILES": launch.tiles}


def run_matrix(blobs: ExpertBlobs, work: ExpertWork, task: MatrixTask, launch: LaunchShape | None = None) -> None:
    """Multiply every listed expert's matrices with its rows."""
    layout = blobs.layout.matrices[task.matrices[0]]
    steps = decode_steps(layout)
    launch = of_all_tiles(launch or launch_for(blobs, work, task.matrices[0]))
    places, parts = blobs.layout.places(), triton.cdiv(layout.tiles, launch.tiles)
    first, second = places[task.matrices[0]], places[task.matrices[-1]]
    expert_matrix_kernel[(parts * len(task.matrices), work.seats.numel())](
        blobs.memory if blobs.addresses is None else blobs.addresses, blobs.stride,
        work.seats, work.starts, task.sources, work.places, *task.activations.arguments, task.out, task.out.stride(0),
        parts, layout.rows, layout.columns, *offsets_of(blobs.layout, task.matrices[0]),
        *(second[array].offset - first[array].offset for array in Array), *steps.table, steps.offset,
        **steps.constants(launch.uses_matrix_units), **listed_constants(launch), BY_ADDRESS=blobs.addresses is not None,
        **launch.options, **dependent_options(),
    )  # fmt: skip


def offsets_of(layout: BlobLayout, matrix: int) -> list[int]:
    """Where the arrays and the post scale of one matrix begin in a blob, in bytes and the kernels' order."""
    places = layout.places()[matrix]
    return [*(places[array].offset for array in Array), layout.post_scales.offset + 4 * matrix]
