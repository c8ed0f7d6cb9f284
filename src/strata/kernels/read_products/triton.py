"""Dense packed matrices times the rows of a read on a GPU, one launch a matrix. Knows no expert."""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.read_products.launches import ExpertLaunch, ReadLaunch, blocks_of_step, dense_launch
from strata.kernels.read_products.tile import multiply_tile, store_products
from strata.kernels.read_products.weights import tiles_of, weight_constants
from strata.quant.layout import BLOCK_COLUMNS, Array, MatrixLayout
from strata.quant.packed import PackedMatrix


@triton.jit(do_not_specialize=["columns", "row_count", "outputs", "out_stride", "post_scale"])
def read_products_kernel(
    codes, scales, super_scales, mins, super_mins, x, columns, row_count, out, out_stride, outputs, post_scale,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, TABLE: tl.constexpr, SIZES: tl.constexpr,
    IS_FLOAT: tl.constexpr, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, ROWS_1: tl.constexpr, ROWS_2: tl.constexpr,
    KB: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr, OUT_ALIGNED: tl.constexpr, STAGES: tl.constexpr,
    WARPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] of x bf16 [rows, columns]; grid: tiles of OUTPUTS outputs of each tile of ROWS rows."""
    begin_dependent()
    parts = tl.cdiv(outputs, OUTPUTS)
    program = tl.program_id(0)
    part, first = program % parts, program // parts * (ROWS_1 + ROWS_2)
    row_1, row_2 = first + tl.arange(0, ROWS_1), first + ROWS_1 + tl.arange(0, ROWS_2 if ROWS_2 > 0 else 16)
    P: tl.constexpr = OUTPUTS // 16 // GROUPS
    arrays = (codes, scales, super_scales, mins, super_mins)
    tiles = ()
    for group in tl.static_range(GROUPS):
        tile = tl.minimum((part * GROUPS + group) * P + tl.arange(0, P), (outputs - 1) // 16)
        tiles += (tiles_of(arrays, tile, columns, SIZES, IS_FLOAT),)
    products = multiply_tile(
        tiles, x, tl.minimum(row_1, row_count - 1), tl.minimum(row_2, row_count - 1), columns, CODE, SCALE, MIN, TABLE,
        SIZES, IS_FLOAT, False, ROWS_1, ROWS_2, KB, EVEN, ALIGNED, STAGES, WARPS, OVERLAP,
    )  # fmt: skip
    for group in tl.static_range(GROUPS):
        output = (part * GROUPS + group) * (P * 16) + tl.arange(0, P * 16)
        store_products(
            out, out_stride, row_1, row_1 < row_count, output, outputs, products[group][0] * post_scale, OUT_ALIGNED
        )  # fmt: skip
        if ROWS_2 > 0:
            store_products(
                out, out_stride, row_2, row_2 < row_count, output, outputs, products[group][1] * post_scale, OUT_ALIGNED
            )  # fmt: skip


def read_products(
    matrices: Sequence[PackedMatrix], x: torch.Tensor, out: torch.Tensor, launch: ReadLaunch | None = None
) -> None:
    """See `strata.kernels.read_products.read_products`."""
    first = 0
    for matrix in matrices:
        part = out[:, first : first + matrix.layout.rows]
        multiply(matrix, x, part, launch or dense_launch(x.shape[0]))
        first += matrix.layout.rows


def multiply(
    matrix: PackedMatrix, x: torch.Tensor, out: torch.Tensor, launch: ReadLaunch, by_pairs: bool = True
) -> None:
    """One matrix: x bf16 [rows, columns] -> out [rows, outputs]. Decoding weights by pairs or not changes no bit."""
    (rows, columns), outputs = x.shape, out.shape[1]
    read_products_kernel[(triton.cdiv(outputs, launch.outputs) * triton.cdiv(rows, launch.rows + launch.more_rows),)](
        *byte_arrays(matrix), x, columns, rows, out, out.stride(0), outputs, matrix.post_scale,
        **weight_constants(matrix.layout, by_pairs), OUTPUTS=launch.outputs, GROUPS=launch.groups, ROWS_1=launch.rows,
        ROWS_2=launch.more_rows,
        **column_constants(matrix.layout, launch),
        OUT_ALIGNED=is_aligned(out, outputs), STAGES=launch.stages, WARPS=launch.warps, OVERLAP=launch.overlap,
        **launch.options, **dependent_options(),
    )  # fmt: skip


def column_constants(layout: MatrixLayout, launch: ReadLaunch | ExpertLaunch) -> dict[str, int | bool]:
    """The constexpr arguments that say how the loop goes over the columns."""
    blocks, columns = blocks_of_step(layout, launch), layout.columns
    return {
        "KB": blocks,
        "EVEN": columns % (BLOCK_COLUMNS * blocks) == 0,
        "ALIGNED": columns % 8 == 0,
    }


def is_aligned(out: torch.Tensor, columns: int) -> bool:
    """Whether eight columns of `out` lie together at a multiple of 16 bytes, and whole eights are written."""
    return out.data_ptr() % 16 == 0 and out.stride(0) % 8 == 0 and columns % 8 == 0


def byte_arrays(matrix: PackedMatrix) -> list[torch.Tensor]:
    """The five arrays, uint8; the codes stand for one that there is not."""
    return [array if array.numel() else matrix.codes for array in map(matrix.array, Array)]
