"""Products of a read's experts on a GPU: gate, up and silu(gate) * up in one launch, down in another.

Knows blobs and the work; how a tile is multiplied is in read_products/tile.py. A program computes some outputs of one
expert for up to `ExpertLaunch.tile_rows` of its places; few places take narrow tiles, which changes no bit.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.elementary import silu_times
from strata.kernels.read_experts import ReadExperts, ReadWork
from strata.kernels.read_experts.launches import DOWN_LAUNCH, HIDDEN_LAUNCH, ExpertLaunch
from strata.kernels.read_experts.tiles import FIELDS, list_tiles
from strata.kernels.read_products.tile import multiply_tile, store_products
from strata.kernels.read_products.triton import column_constants, is_aligned
from strata.kernels.read_products.weights import tiles_of, weight_constants
from strata.quant.layout import Array, BlobLayout

GATE, UP, DOWN = range(3)
COLUMNS = 512  # of a program of silu


@triton.jit
def arrays_of_blob(blob, offsets, to_second, second):
    """Pointers to the arrays of a blob's first matrix, or, where `second` [P] is 1, of its second one."""
    return (
        blob + (offsets[0] // 64 * 64 + second * (to_second[0] // 64 * 64)),
        blob + (offsets[1] // 64 * 64 + second * (to_second[1] // 64 * 64)),
        blob + (offsets[2] // 64 * 64 + second * (to_second[2] // 64 * 64)),
        blob + (offsets[3] // 64 * 64 + second * (to_second[3] // 64 * 64)),
        blob + (offsets[4] // 64 * 64 + second * (to_second[4] // 64 * 64)),
    )


@triton.jit
def silu_of_pairs(products, gate_scale, up_scale):
    """Products [2 * O, N] whose rows are eight of gate, eight of up, and so on -> silu(gate) * up, [O, N]."""
    OUTPUTS: tl.constexpr = products.shape[0]
    ROWS: tl.constexpr = products.shape[1]
    pairs = tl.permute(tl.reshape(products, (OUTPUTS // 16, 2, 8, ROWS)), (0, 2, 3, 1))
    gate, up = tl.split(pairs)
    return tl.reshape(silu_times(gate * gate_scale, up * up_scale), (OUTPUTS // 2, ROWS))


@triton.jit
def expert_tile(
    arrays, x, order, ranks, first, last, columns, out, out_stride, part, outputs, scales,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, TABLE: tl.constexpr, SIZES: tl.constexpr,
    IS_FLOAT: tl.constexpr, GATHERS: tl.constexpr, PAIRED: tl.constexpr, GROUPS: tl.constexpr,
    ROWS_1: tl.constexpr, ROWS_2: tl.constexpr, KB: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr,
    OUT_ALIGNED: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Outputs of part `part` for the positions [first, last) of the work's order, at most ROWS_1 + ROWS_2.

    arrays: of `arrays_of_blob`. GATHERS: rows of x are those of the places, and results go to positions; else the
    other way round. PAIRED: the outputs are of gate and of up, and the results silu(gate) * up.
    """
    P: tl.constexpr = arrays[0].shape[0]
    TILES: tl.constexpr = P // 2 if PAIRED else P  # of one matrix
    position_1 = first + tl.arange(0, ROWS_1)
    position_2 = first + ROWS_1 + tl.arange(0, ROWS_2 if ROWS_2 > 0 else 16)
    inside_1, inside_2 = tl.minimum(position_1, last - 1), tl.minimum(position_2, last - 1)
    place_1, place_2 = tl.load(order + inside_1), tl.load(order + inside_2)
    row_1, row_2 = place_1 // ranks if GATHERS else inside_1, place_2 // ranks if GATHERS else inside_2
    to_1, to_2 = position_1 if GATHERS else place_1, position_2 if GATHERS else place_2
    tiles = ()
    first_tile = part * (GROUPS * TILES)
    for group in tl.static_range(GROUPS):
        tile = tl.minimum(first_tile + group * TILES + tl.arange(0, P) % TILES, (outputs - 1) // 16)
        tiles += (tiles_of(arrays, tile, columns, SIZES, IS_FLOAT),)
    products = multiply_tile(
        tiles, x, row_1, row_2, columns, CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, PAIRED, ROWS_1, ROWS_2, KB, EVEN,
        ALIGNED, STAGES, WARPS, OVERLAP,
    )  # fmt: skip
    for group in tl.static_range(GROUPS):
        output = (first_tile + group * TILES) * 16 + tl.arange(0, 16 * TILES)
        values = finished(products[group][0], scales, PAIRED)
        store_products(out, out_stride, to_1, position_1 < last, output, outputs, values, OUT_ALIGNED)
        if ROWS_2 > 0:
            values = finished(products[group][1], scales, PAIRED)
            store_products(out, out_stride, to_2, position_2 < last, output, outputs, values, OUT_ALIGNED)


@triton.jit
def finished(products, scales, PAIRED: tl.constexpr):
    """Products times the post scales of their matrices; PAIRED: silu(gate) * up."""
    return silu_of_pairs(products, scales[0], scales[1]) if PAIRED else products * scales[0]


@triton.jit(
    do_not_specialize=[
        "ranks", "columns", "out_stride", "outputs", "parts", "codes", "scales", "super_scales", "mins", "super_mins",
        "codes_step", "scales_step", "super_scales_step", "mins_step", "super_mins_step", "post_scale",
    ],
    do_not_specialize_on_alignment=["addresses", "tiles", "order"],
)  # fmt: skip
def read_experts_kernel(
    addresses, tiles, order, ranks, x, columns, out, out_stride, outputs, parts,
    codes, scales, super_scales, mins, super_mins, post_scale,
    codes_step, scales_step, super_scales_step, mins_step, super_mins_step,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, TABLE: tl.constexpr, SIZES: tl.constexpr,
    IS_FLOAT: tl.constexpr, GATHERS: tl.constexpr, PAIRED: tl.constexpr, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr,
    ROWS_1: tl.constexpr, ROWS_2: tl.constexpr, KB: tl.constexpr, EVEN: tl.constexpr,
    ALIGNED: tl.constexpr, OUT_ALIGNED: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Grid: `parts` parts of the outputs of each tile of rows. codes .. post_scale: byte offsets in a blob.

    PAIRED: OUTPUTS / 2 outputs of gate and as many of up, whose arrays lie the steps further on.
    """
    begin_dependent()
    program = tl.program_id(0)
    part = program % parts
    entry = tiles + program // parts * FIELDS
    expert, first, last = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    if first < last:
        P: tl.constexpr = OUTPUTS // 16 // GROUPS  # tiles of a group
        blob = tl.multiple_of(tl.load(addresses + expert).to(tl.pointer_type(tl.uint8)), 64)
        arrays = arrays_of_blob(
            blob, (codes, scales, super_scales, mins, super_mins),
            (codes_step, scales_step, super_scales_step, mins_step, super_mins_step),
            tl.arange(0, P) // (P // 2 if PAIRED else P),
        )  # fmt: skip
        factors = (blob + post_scale).to(tl.pointer_type(tl.float32))
        factor_1 = tl.load(factors)
        factor_2 = tl.load(factors + 1) if PAIRED else factor_1
        if last - first <= 32:
            expert_tile(
                arrays, x, order, ranks, first, last, columns, out, out_stride, part, outputs, (factor_1, factor_2),
                CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, GATHERS, PAIRED, GROUPS, 32, 0, KB, EVEN, ALIGNED,
                OUT_ALIGNED, STAGES, WARPS, OVERLAP,
            )  # fmt: skip
        elif last - first <= 64:
            expert_tile(
                arrays, x, order, ranks, first, last, columns, out, out_stride, part, outputs, (factor_1, factor_2),
                CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, GATHERS, PAIRED, GROUPS, 64, 0, KB, EVEN, ALIGNED,
                OUT_ALIGNED, STAGES, WARPS, OVERLAP,
            )  # fmt: skip
        elif last - first <= 96:
            expert_tile(
                arrays, x, order, ranks, first, last, columns, out, out_stride, part, outputs, (factor_1, factor_2),
                CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, GATHERS, PAIRED, GROUPS, 64, 32, KB, EVEN, ALIGNED,
                OUT_ALIGNED, STAGES, WARPS, OVERLAP,
            )  # fmt: skip
        elif last - first <= ROWS_1:
            expert_tile(
                arrays, x, order, ranks, first, last, columns, out, out_stride, part, outputs, (factor_1, factor_2),
                CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, GATHERS, PAIRED, GROUPS, ROWS_1, 0, KB, EVEN, ALIGNED,
                OUT_ALIGNED, STAGES, WARPS, OVERLAP,
            )  # fmt: skip
        elif ROWS_2 > 32 and last - first <= ROWS_1 + 32:
            expert_tile(
                arrays, x, order, ranks, first, last, columns, out, out_stride, part, outputs, (factor_1, factor_2),
                CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, GATHERS, PAIRED, GROUPS, ROWS_1, 32, KB, EVEN, ALIGNED,
                OUT_ALIGNED, STAGES, WARPS, OVERLAP,
            )  # fmt: skip
        elif ROWS_2 > 0:
            expert_tile(
                arrays, x, order, ranks, first, last, columns, out, out_stride, part, outputs, (factor_1, factor_2),
                CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, GATHERS, PAIRED, GROUPS, ROWS_1, ROWS_2, KB, EVEN, ALIGNED,
                OUT_ALIGNED, STAGES, WARPS, OVERLAP,
            )  # fmt: skip


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["tiles", "gate_up", "hidden"])
def silu_of_tiles_kernel(tiles, gate_up, hidden, width, COLUMNS: tl.constexpr):
    """Grid: parts of COLUMNS columns of each tile of rows."""
    begin_dependent()
    entry = tiles + tl.program_id(1) * FIELDS
    first, last = tl.load(entry + 1), tl.load(entry + 2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    for row in range(last - first):
        position = (first + row).to(tl.int64)
        at = gate_up + position * (2 * width) + column
        gate = tl.load(at, mask=column < width, other=0.0)
        up = tl.load(at + width, mask=column < width, other=0.0)
        values = silu_times(gate, up).to(tl.bfloat16)
        tl.store(hidden + position * width + column, values, mask=column < width)


def silu_of_tiles(tiles: torch.Tensor, gate_up: torch.Tensor, hidden: torch.Tensor) -> None:
    """hidden bf16 [positions, width] of the listed tiles, from gate and up side by side, float32."""
    width = hidden.shape[1]
    silu_of_tiles_kernel[(triton.cdiv(width, COLUMNS), tiles.shape[0])](
        tiles, gate_up, hidden, width, COLUMNS=COLUMNS, num_warps=4, enable_fp_fusion=False, **dependent_options()
    )


@dataclass(frozen=True)
class ExpertTask:
    """One launch of the kernel: which matrix of a blob, from which rows to where."""

    matrix: int  # GATE, UP or DOWN; GATE stands for gate and up if `paired`
    x: torch.Tensor  # bf16 [rows, columns]
    out: torch.Tensor  # [positions or places, outputs], any row stride
    gathers: bool  # rows of x are those of places and results go to positions, or the other way round
    paired: bool = False


def experts_hidden(
    experts: ReadExperts,
    x: torch.Tensor,
    work: ReadWork,
    most_tiles: int,
    hidden: torch.Tensor,
    launch: ExpertLaunch = HIDDEN_LAUNCH,
) -> None:
    """See `strata.kernels.read_experts.experts_hidden`."""
    tiles = list_tiles(experts, work, most_tiles, launch.tile_rows)
    if experts.layout.gate == experts.layout.up:
        run_experts(experts, ExpertTask(GATE, x, hidden, gathers=True, paired=True), work, tiles, launch)
        return
    width = hidden.shape[1]
    gate_up = torch.empty(hidden.shape[0], 2 * width, dtype=torch.float32, device=hidden.device)
    run_experts(experts, ExpertTask(GATE, x, gate_up[:, :width], gathers=True), work, tiles, launch)
    run_experts(experts, ExpertTask(UP, x, gate_up[:, width:], gathers=True), work, tiles, launch)
    silu_of_tiles(tiles, gate_up, hidden)


def experts_down(
    experts: ReadExperts,
    hidden: torch.Tensor,
    work: ReadWork,
    most_tiles: int,
    by_rank: torch.Tensor,
    launch: ExpertLaunch = DOWN_LAUNCH,
) -> None:
    """See `strata.kernels.read_experts.experts_down`."""
    tiles = list_tiles(experts, work, most_tiles, launch.tile_rows)
    task = ExpertTask(DOWN, hidden, by_rank.view(-1, by_rank.shape[2]), gathers=False)
    run_experts(experts, task, work, tiles, launch)


def run_experts(
    experts: ReadExperts, task: ExpertTask, work: ReadWork, tiles: torch.Tensor, launch: ExpertLaunch
) -> None:
    """Multiply the listed tiles' rows by one matrix of their experts, or by gate and up."""
    layout, out = experts.layout.matrices[task.matrix], task.out
    outputs = launch.outputs // 2 if task.paired else launch.outputs
    parts = triton.cdiv(layout.rows, outputs)
    ranks = work.order.numel() // task.x.shape[0]
    read_experts_kernel[(parts * tiles.shape[0],)](
        experts.addresses, tiles, work.order, ranks, task.x, layout.columns, out, out.stride(0), layout.rows, parts,
        *blob_offsets(experts.layout, task.matrix), *steps_to_up(experts.layout), **weight_constants(layout),
        GATHERS=task.gathers, PAIRED=task.paired, OUTPUTS=launch.outputs, GROUPS=launch.groups,
        ROWS_1=launch.rows, ROWS_2=launch.more_rows,
        **column_constants(layout, launch),
        OUT_ALIGNED=is_aligned(out, layout.rows), STAGES=launch.stages, WARPS=launch.warps, OVERLAP=launch.overlap,
        **launch.options, **dependent_options(),
    )  # fmt: skip


def blob_offsets(layout: BlobLayout, matrix: int) -> list[int]:
    """Where the arrays and the post scale of one matrix begin in a blob, in bytes and the kernel's order."""
    places = layout.places()[matrix]
    return [*(places[array].offset for array in Array), layout.post_scales.offset + 4 * matrix]


def steps_to_up(layout: BlobLayout) -> list[int]:
    """From the arrays of gate to those of up, in bytes."""
    gate, up, _ = layout.places()
    return [up[array].offset - gate[array].offset for array in Array]
