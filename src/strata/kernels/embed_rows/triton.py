"""Rows of a packed table on a GPU: one program decodes a few blocks of one row. Knows no checks.

Knows the matrices of a table; packed_rows/decode_row.py knows rows and codes. Runs with `enable_fp_fusion=False`: the
values have the bits of `PackedMatrix.decode`.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.decode_row import decode_blocks
from strata.quant.layout import BLOCK_COLUMNS, Array, MatrixLayout
from strata.quant.packed import PackedMatrix

BLOCKS_A_PROGRAM = 8  # of 32 columns: a row of 2,560 columns is 10 programs


@triton.jit(
    do_not_specialize=["first", "rows", "total_rows", "t0", "t1", "t2", "t3", "offset"],
    do_not_specialize_on_alignment=["tokens", "out"],
)
def embed_rows_kernel(
    codes, scales, super_scales, mins, super_mins, tokens, out, first, rows, total_rows,
    t0, t1, t2, t3, offset, post_scale,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr, STREAMS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Rows `first` .. `first + rows - 1` of the table; grid (blocks / BLOCKS, tokens).

    A token of another matrix is left to that one's launch; one of no matrix gets NaN from every launch.
    """
    begin_dependent()
    number = tl.program_id(1)
    token = tl.load(tokens + number)
    is_mine = (token >= first) & (token < first + rows)
    is_nobodys = (token < 0) | (token >= total_rows)
    if is_mine | is_nobodys:
        block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
        column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
        in_matrix = tl.where(is_mine, token - first, 0).to(tl.int64)
        value = decode_blocks(
            (codes, scales, super_scales, mins, super_mins), (t0, t1, t2, t3), offset, post_scale, COLUMNS,
            in_matrix, block, CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK,
        )  # fmt: skip
        value = tl.where(is_mine, value, float("nan"))
        for stream in tl.static_range(STREAMS):
            at = out + (number.to(tl.int64) * STREAMS + stream) * COLUMNS + column
            tl.store(at, value, mask=column < COLUMNS)


def embed_rows(table: Sequence[PackedMatrix], tokens: torch.Tensor, streams_out: torch.Tensor, streams: int) -> None:
    """One launch a matrix."""
    total_rows = sum(matrix.layout.rows for matrix in table)
    first = 0
    for matrix in table:
        layout = matrix.layout
        steps = decode_steps(layout)
        embed_rows_kernel[_grid(layout, tokens.numel())](
            *_arrays(matrix), tokens, streams_out, first, layout.rows, total_rows,
            *steps.table, steps.offset, matrix.post_scale,
            **steps.constants(), COLUMNS=layout.columns, STREAMS=streams, BLOCKS=BLOCKS_A_PROGRAM,
            num_warps=2, enable_fp_fusion=False, **dependent_options(),
        )  # fmt: skip
        first += layout.rows


def _grid(layout: MatrixLayout, rows: int) -> tuple[int, int]:
    return triton.cdiv(triton.cdiv(layout.columns, BLOCK_COLUMNS), BLOCKS_A_PROGRAM), rows


def _arrays(matrix: PackedMatrix) -> list[torch.Tensor]:
    """In the kernels' order; where the matrix lacks one, its codes stand for it."""
    arrays = [array if array.numel() else matrix.codes for array in map(matrix.array, Array)]
    if not matrix.layout.code.is_float:
        arrays[0] = arrays[0].view(torch.int32)
    return arrays
