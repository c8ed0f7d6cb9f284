"""Rows of activations as the matrix kernels read them: quantized in blocks of 32, or as they are for float codes.

Knows the order of bytes that both units want; knows no weight. The bits are those of the definition: only + - * and
tl.div_rn, with `enable_fp_fusion=False`.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations
from strata.quant.layout import BLOCK_COLUMNS, MatrixLayout

BLOCKS_A_PROGRAM = 8  # of the quantizing kernels


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
def store_quantized(x, q, records, row, block, blocks, row_step, block_step):
    """Quantize and write the blocks `block` [BLOCKS] of one row: q int8, and records of d and two sums of int16."""
    exists = block < blocks
    values, scale, half_sums = quantize_blocks(x)
    half, column = tl.arange(0, 2), tl.arange(0, 16)
    byte = (column // 4 * 8 + column % 4)[None, None, :] + half[None, :, None] * 4
    at = row.to(tl.int64) * row_step + block * block_step
    tl.store(
        q.to(tl.pointer_type(tl.int8)) + (at[:, None, None] * 32 + byte), values.to(tl.int8), mask=exists[:, None, None]
    )
    tl.store(records.to(tl.pointer_type(tl.float32)) + at * 2, scale, mask=exists)
    sums = records.to(tl.pointer_type(tl.int16)) + at[:, None] * 4 + (2 + half)[None, :]
    tl.store(sums, half_sums.to(tl.int16), mask=exists[:, None])


@triton.jit(do_not_specialize=["blocks", "row_step", "block_step"])
def quantize_kernel(x, q, records, blocks, row_step, block_step, BLOCKS: tl.constexpr):
    """x float32 [rows, blocks * 32]; grid (blocks / BLOCKS, rows)."""
    begin_dependent()
    row = tl.program_id(1)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    element = tl.arange(0, 2)[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    at = (row.to(tl.int64) * blocks + block)[:, None, None] * 32 + element
    values = tl.load(x + at, mask=(block < blocks)[:, None, None], other=0.0)
    store_quantized(values, q, records, row, block, blocks, row_step, block_step)


def quantize_rows(x: torch.Tensor, launch: LaunchShape) -> Activations:
    """x float32 [rows, columns], columns a multiple of 32."""
    made = Activations.empty(x.shape[0], x.shape[1] // BLOCK_COLUMNS, x.device, launch)
    quantize_into(x, made)
    return made


def quantize_into(x: torch.Tensor, out: Activations) -> None:
    """The same into memory that is there."""
    rows, blocks = x.shape[0], x.shape[1] // BLOCK_COLUMNS
    quantize_kernel[(triton.cdiv(blocks, BLOCKS_A_PROGRAM), rows)](
        x, out.values, out.records, blocks, out.row_step, out.block_step,
        BLOCKS=BLOCKS_A_PROGRAM, num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


def activations_for(layout: MatrixLayout, x: torch.Tensor, launch: LaunchShape) -> Activations:
    """What a launch reads of x float32 [rows, columns] for a matrix of this layout."""
    return Activations(x, x) if layout.code.is_float else quantize_rows(x, launch)
