"""Kernels that run one function of the product's kernels over an array. Needs Triton; knows no expected value."""

import triton
import triton.language as tl

from strata.kernels.elementary import silu_times
from strata.kernels.instructions import dp4a, permute_bytes
from strata.kernels.packed_rows.blocks_out import store_blocks
from strata.kernels.packed_rows.matrix_units import add_lanes_of_group
from strata.kernels.packed_rows.sums import MAGIC, float_of_sum, minus, open_record
from strata.kernels.stream_gates.tiles import add_lanes_of_tiles


@triton.jit
def instructions_kernel(a, b, sums, permuted):
    """16 words each: dp4a with the position as its start, and bytes 6, 4, 0, 7 of every pair."""
    at = tl.arange(0, 16)
    x, y = tl.load(a + at), tl.load(b + at)
    tl.store(sums + at, dp4a(x, y, at))
    tl.store(permuted + at, permute_bytes(x, y, 0x7046))


@triton.jit
def silu_kernel(gate, up, out):
    """256 values a program."""
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(out + at, silu_times(tl.load(gate + at), tl.load(up + at)))


@triton.jit
def sums_kernel(sums, records, floats, d, low, high):
    """16 sums as floats, and 16 records taken apart, d with its sign turned."""
    at = tl.arange(0, 16)
    tl.store(floats + at, float_of_sum(tl.load(sums + at) + MAGIC))
    scale, low_sum, high_sum = open_record(tl.load(records + at))
    tl.store(d + at, minus(scale))
    tl.store(low + at, low_sum)
    tl.store(high + at, high_sum)


@triton.jit
def bytes_kernel(codes, out, t0, t1, t2, t3, BLOCKS: tl.constexpr, CODE: tl.constexpr):
    """The integers of one tile of BLOCKS blocks, int8 [BLOCKS, 16, 32], as the matrix units get them."""
    block = tl.arange(0, BLOCKS)
    values = CODE(codes, block, (t0, t1, t2, t3))
    at = (block[:, None, None] * 16 + tl.arange(0, 16)[None, :, None]) * 32 + tl.arange(0, 32)[None, None, :]
    tl.store(out + at, values)


@triton.jit
def lanes_kernel(lanes, out):
    """lanes [8, 16, 8] -> [16, 8]."""
    at = tl.arange(0, 16)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(out + at, add_lanes_of_group(tl.load(lanes + tl.arange(0, 8)[:, None, None] * 128 + at[None, :, :])))


@triton.jit
def blocks_out_kernel(x, q, records, row_step, block_step, blocks, BLOCKS: tl.constexpr):
    """x float32 [rows, blocks * 32], a row a program, with places for BLOCKS blocks."""
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    values = tl.load(x + row * blocks * 32 + column, mask=(block < blocks)[:, None], other=0.0)
    store_blocks(values, q, records, row, block, blocks, row_step, block_step)


@triton.jit
def lanes_of_tiles_kernel(acc, out, TILES: tl.constexpr, LEVELS: tl.constexpr):
    """acc float32 [TILES, 2^LEVELS lanes, 16] -> out [TILES, 16]."""
    LANES: tl.constexpr = 1 << LEVELS
    tile, lane = tl.arange(0, TILES)[:, None, None], tl.arange(0, LANES)[None, :, None]
    at = (tile * LANES + lane) * 16 + tl.arange(0, 16)[None, None, :]
    tl.store(out + tl.arange(0, TILES * 16), add_lanes_of_tiles(tl.load(acc + at), LEVELS))
