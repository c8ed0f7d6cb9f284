"""Several tiles of a packed matrix times eight rows at once by the GPU's matrix units, a warp for each lane.

Knows tiles and lanes; the codes are in packed_rows/decode_bytes.py. Blocks of all steps are multiplied together, as a
place for each of them, and then added step by step: so all is asked for before the first is waited for. A program's
tiles lie under one another as one matrix of `outputs` = TILES * 16 rows. The bits are those of
packed_rows/matrix_units.py.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.packed_rows.sums import MAGIC, float_of_sum, minus, open_record, sub_block_of
from strata.kernels.stream_gates.tiles import add_halves

MOST_STEPS = 2  # blocks of one lane


@triton.jit
def load_blocks_of_tiles(
    arrays, table, column_tile, TILES_OF_STREAM: tl.constexpr, BLOCKS: tl.constexpr, STREAMS: tl.constexpr,
    TILES: tl.constexpr, PLACES: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """Of all blocks weights int8 [PLACES, outputs, 32], scales and minima, tuples of [PLACES, outputs] each.

    The last block stands in places behind it.
    """
    codes, weight_scales, super_scales, mins, super_mins = arrays
    number = tl.arange(0, PLACES * TILES)  # place * TILES + tile
    output = tl.arange(0, TILES * 16)[None, :]
    tile_of_number = tl.minimum(number % TILES // 2, STREAMS - 1) * TILES_OF_STREAM + column_tile + number % 2
    tile = tl.minimum(output // 32, STREAMS - 1) * TILES_OF_STREAM + column_tile + output % 32 // 16
    block = tl.minimum(tl.arange(0, PLACES)[:, None], BLOCKS - 1)
    at_super = (tile * (BLOCKS // 8) + block // 8) * 16 + output % 16
    scales = ()
    minima = ()
    for half in tl.static_range(2 if SUB_BLOCK == 16 else 1):
        at = sub_block_of(tile, BLOCKS, block, half, SUB_BLOCK) * 16 + output % 16
        scales += (SCALE(weight_scales, at, super_scales, at_super),)
        if HAS_MIN:
            minima += (MIN(mins, at, super_mins, at_super),)
    weights = CODE(codes, tile_of_number * BLOCKS + tl.minimum(number // TILES, BLOCKS - 1), table)
    return tl.reshape(weights, (PLACES, TILES * 16, 32)), scales, minima


@triton.jit
def of_steps(x):
    """[8 * steps, n, m] -> a tuple of steps [8, n, m]."""
    if x.shape[0] == 8:
        steps = (x,)
    else:
        tl.static_assert(x.shape[0] == 16)
        steps = tl.split(tl.permute(tl.reshape(x, (2, 8, x.shape[1], x.shape[2])), (1, 2, 3, 0)))
    return steps


@triton.jit
def product_of_group(
    loaded, activations, first, row_count, offset,
    BLOCKS: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows first .. first + 7 of quantized activations: float32 [8 * outputs].

    Behind the last row comes that one again. A place without a block has d = 0, and its zero changes no accumulator:
    see packed_rows/dot_blocks.py.
    """
    weights, scales, minima = loaded
    q, records, row_step, block_step = activations
    q = tl.multiple_of(q.to(tl.pointer_type(tl.int8)), 16)
    HALVES: tl.constexpr = 2 if SUB_BLOCK == 16 else 1
    PLACES: tl.constexpr = weights.shape[0]
    OUTPUTS: tl.constexpr = weights.shape[1]
    place, byte = tl.arange(0, PLACES), tl.arange(0, 32)[None, None, :]
    row = tl.minimum(first + tl.arange(0, 8), row_count - 1)
    at = row[:, None] * row_step + tl.minimum(place, BLOCKS - 1)[None, :] * block_step
    dx, low, high = open_record(tl.load(records + tl.trans(at)))
    dx = tl.where((place < BLOCKS)[:, None], dx, 0.0)[:, None, :]
    q_sums = (low, high) if HALVES == 2 else (low + high,)
    values = tl.load(q + (at[:, :, None] * 32 + byte))
    terms = ()  # of factors and what they multiply, a pair for each step
    for half in tl.static_range(HALVES):
        of_half = tl.where(byte % 8 // 4 == half, values, 0) if HALVES == 2 else values
        start = q_sums[half] * offset + MAGIC if IS_LINEAR else q_sums[half] * 0 + MAGIC
        start = tl.broadcast_to(start[:, None, :], (PLACES, OUTPUTS, 8))
        total = tl.dot(weights, tl.permute(of_half, (1, 2, 0)), start, out_dtype=tl.int32)
        terms += ((of_steps(scales[half][:, :, None] * dx), of_steps(float_of_sum(total))),)
    if HAS_MIN:
        for half in tl.static_range(HALVES):
            sums = tl.broadcast_to(q_sums[half].to(tl.float32)[:, None, :], (PLACES, OUTPUTS, 8))
            terms += ((of_steps(minima[half][:, :, None] * minus(dx)), of_steps(sums)),)
    acc = tl.zeros((8, OUTPUTS, 8), tl.float32)
    for step in tl.static_range(PLACES // 8):
        for term in tl.static_range(len(terms)):
            acc = tl.fma(terms[term][0][step], terms[term][1][step], acc)
    return add_halves(tl.reshape(tl.permute(acc, (2, 1, 0)), (8 * OUTPUTS, 8)), 3)
