"""Dense packed matrices times the rows of a read on a GPU, one launch a matrix. Knows no expert."""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.read_products.launches import ExpertLaunch, ReadLaunch, blocks_and_steps, dense_launch
from strata.kernels.read_products.tile import multiply_tile, store_products
from strata.kernels.read_products.weights import tiles_of, weight_constants
from strata.quant.layout import BLOCK_COLUMNS, Array, MatrixLayout
from strata.quant.packed import PackedMatrix


@triton.jit(do_not_specialize=["columns", "row_count", "outputs", "out_stride", "post_scale"])
def read_products_kernel(
    codes, scales, super_scales, mins, super_mins, x, columns, row_count, out, out_stride, outputs, post_scale,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, TABLE: tl.constexpr, SIZES: tl.constexpr,
    IS_FLOAT: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, KB: tl.constexpr, STEPS: tl.constexpr,
    EVEN: tl.constexpr, ALIGNED: tl.constexpr, OUT_ALIGNED: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] of x bf16 [rows, columns]; grid: tiles of OUTPUTS outputs of each tile of ROWS rows."""
    begin_dependent()
    parts = tl.cdiv(outputs, OUTPUTS)
    program = tl.program_id(0)
    part, first = program % parts, program // parts * ROWS
    tile = tl.minimum(part * (OUTPUTS // 16) + tl.arange(0, OUTPUTS // 16), (outputs - 1) // 16)
    row = first + tl.arange(0, ROWS)
    tiles = tiles_of((codes, scales, super_scales, mins, super_mins), tile, columns, SIZES, IS_FLOAT)
    products, _ = multiply_tile(
        tiles, x, tl.minimum(row, row_count - 1), row, columns, CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, False,
        ROWS, 0, KB, STEPS, EVEN, ALIGNED, STAGES, WARPS,
    )  # fmt: skip
    output = part * OUTPUTS + tl.arange(0, OUTPUTS)
    store_products(out, out_stride, row, row < row_count, output, outputs, products * post_scale, OUT_ALIGNED)


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
    read_products_kernel[(triton.cdiv(outputs, launch.outputs) * triton.cdiv(rows, launch.rows),)](
        *byte_arrays(matrix), x, columns, rows, out, out.stride(0), outputs, matrix.post_scale,
        **weight_constants(matrix.layout, by_pairs), OUTPUTS=launch.outputs, ROWS=launch.rows,
        **column_constants(matrix.layout, launch),
        OUT_ALIGNED=is_aligned(out, outputs), STAGES=launch.stages, WARPS=launch.warps,
        **launch.options, **dependent_options(),
    )  # fmt: skip


def column_constants(layout: MatrixLayout, launch: ReadLaunch | ExpertLaunch) -> dict[str, int | bool]:
    """The constexpr arguments that say how the loop goes over the columns."""
    (blocks, steps), columns = blocks_and_steps(layout, launch), layout.columns
    return {
        "KB": blocks,
        "STEPS": steps,
        "EVEN": columns % (BLOCK_COLUMNS * blocks * steps) == 0,
        "ALIGNED": columns % 8 == 0,
    }


def is_aligned(out: torch.Tensor, columns: int) -> bool:
    """Whether eight columns of `out` lie together at a multiple of 16 bytes, and whole eights are written."""
    return out.data_ptr() % 16 == 0 and out.stride(0) % 8 == 0 and columns % 8 == 0


def byte_arrays(matrix: PackedMatrix) -> list[torch.Tensor]:
    """The five arrays, uint8; the codes stand for one that there is not."""
    return [array if array.numel() else matrix.codes for array in map(matrix.array, Array)]
