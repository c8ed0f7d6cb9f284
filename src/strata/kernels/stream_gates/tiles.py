"""Several tiles of a packed matrix times a few rows at once, a warp or so each, with the bits of packed_rows/triton.py.

Knows tiles and lanes; packed_rows/decode.py knows the codes. Everything has the shape [tiles, lanes, 16]: `tile`
[tiles, 1, 1], `lane` [1, lanes, 1], `output` [1, 1, 16].
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.packed_rows.dot_blocks import add_block
from strata.kernels.packed_rows.sums import open_record, sub_block_of


@triton.jit
def add_halves(x, LEVELS: tl.constexpr):
    """x [n, 2^LEVELS] -> [n]: entry i plus entry i + half, until one is left."""
    COUNT: tl.constexpr = x.shape[0]
    for _ in tl.static_range(LEVELS):
        a, b = tl.split(tl.permute(tl.reshape(x, (COUNT, 2, x.shape[1] // 2)), (0, 2, 1)))
        x = a + b
    return tl.reshape(x, (COUNT,))


@triton.jit
def add_lanes_of_tiles(acc, LEVELS: tl.constexpr):
    """acc [tiles, 2^LEVELS, 16] -> [tiles * 16]: the tree of each output's lanes."""
    COUNT: tl.constexpr = acc.shape[0] * 16
    return add_halves(tl.reshape(tl.permute(acc, (0, 2, 1)), (COUNT, acc.shape[1])), LEVELS)


@triton.jit
def load_step(
    arrays, table, tile, step, BLOCKS: tl.constexpr,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of every lane: a tuple of eight words, then a scale of each sum, then a minimum of each."""
    codes, weight_scales, super_scales, mins, super_mins = arrays
    HALVES: tl.constexpr = 2 if SUB_BLOCK == 16 else 1
    output = tl.arange(0, 16)[None, None, :]
    block = tl.minimum(step * 8 + tl.arange(0, 8)[None, :, None], BLOCKS - 1)
    at_super = (tile * (BLOCKS // 8) + block // 8) * 16 + output
    loaded = CODE(codes, tile * BLOCKS + block, output, table)
    for half in tl.static_range(HALVES):
        at = sub_block_of(tile, BLOCKS, block, half, SUB_BLOCK) * 16 + output
        loaded += (SCALE(weight_scales, at, super_scales, at_super),)
    if HAS_MIN:
        for half in tl.static_range(HALVES):
            at = sub_block_of(tile, BLOCKS, block, half, SUB_BLOCK) * 16 + output
            loaded += (MIN(mins, at, super_mins, at_super),)
    return loaded


@triton.jit
def add_step(
    acc, loaded, activations, row, offset, step, BLOCKS: tl.constexpr,
    IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """acc [tiles, 8, 16] and a step's blocks for one row; `loaded` holds what `load_step` gave for every step.

    As in packed_rows/triton.py, a lane without a block adds a zero, which changes no accumulator.
    """
    q, records, row_step, block_step = activations
    HALVES: tl.constexpr = 2 if SUB_BLOCK == 16 else 1
    FIRST: tl.constexpr = step * (8 + HALVES * (2 if HAS_MIN else 1))
    words = ()
    scales = ()
    minima = ()
    for word in tl.static_range(8):
        words += (loaded[FIRST + word],)
    for half in tl.static_range(HALVES):
        scales += (loaded[FIRST + 8 + half],)
        if HAS_MIN:
            minima += (loaded[FIRST + 8 + HALVES + half],)
    block = step * 8 + tl.arange(0, 8)[None, :, None]
    at = row * row_step + tl.minimum(block, BLOCKS - 1) * block_step
    dx, low, high = open_record(tl.load(records + at))
    dx = tl.where(block < BLOCKS, dx, 0.0)
    return add_block(acc, words, scales, minima, q + at * 4, dx, low, high, offset, IS_LINEAR, HAS_MIN, HALVES)


@triton.jit
def integer_product(
    loaded, activations, at_rows, offset,
    BLOCKS: tl.constexpr, TILES: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """Tiles of an integer code, `loaded` for every step, times each row's low: float32 [tiles * 16] each."""
    ROWS: tl.constexpr = len(at_rows)
    results = ()
    for r in tl.static_range(ROWS):
        acc = tl.zeros((TILES, 8, 16), tl.float32)
        for step in tl.static_range((BLOCKS + 7) // 8):
            acc = add_step(
                acc, loaded, activations, at_rows[r], offset, step, BLOCKS, IS_LINEAR, HAS_MIN, SUB_BLOCK
            )  # fmt: skip
        results += (add_lanes_of_tiles(acc, 3),)
    return results


@triton.jit
def float_tiles(
    arrays, x, at_rows, tile, TILES: tl.constexpr, COLUMNS: tl.constexpr,
    VALUE: tl.constexpr, SCALE: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """Tiles of a float code times each row of x float32 [rows, COLUMNS] in `at_rows`: float32 [tiles * 16] each."""
    codes, scales = arrays[0], arrays[1]
    ROWS: tl.constexpr = len(at_rows)
    lane, output = tl.arange(0, 16)[None, :, None], tl.arange(0, 16)[None, None, :]
    accs = (tl.zeros((TILES, 16, 16), tl.float32),) * ROWS
    for step in tl.range(0, tl.cdiv(COLUMNS, 16), num_stages=1):
        exists = step * 16 + lane < COLUMNS
        column = tl.minimum(step * 16 + lane, COLUMNS - 1)
        weight = VALUE(codes, (tile * COLUMNS + column) * 16 + output)
        if SUB_BLOCK > 0:
            at = (tile * tl.cdiv(COLUMNS, SUB_BLOCK) + column // SUB_BLOCK) * 16 + output
            weight = weight * SCALE(scales, at, scales, at)
        new = ()
        for r in tl.static_range(ROWS):
            value = tl.broadcast_to(tl.load(x + at_rows[r] * COLUMNS + column), weight.shape)
            new += (tl.where(exists, tl.fma(weight, value, accs[r]), accs[r]),)
        accs = new
    results = ()
    for r in tl.static_range(ROWS):
        results += (add_lanes_of_tiles(accs[r], 4),)
    return results
