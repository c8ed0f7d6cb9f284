"""A tile of packed rows for groups of eight activation rows by the GPU's matrix units (int8 products, int32 sums).

Knows lanes and their order; decode_bytes.py knows the codes. A block's sum is exact whoever forms it, and what follows
it is what triton.py does, operation by operation: the bits are the same. Float codes have no exact sums and stay there.

With eight warps, one a lane, blocks come out of memory in the registers where the matrix units want them: a thread has
two rows of a tile that are eight apart there, and neighbours in memory, so rows take the places of `row_at`. The loop
has no shuffle, no shared memory and no barrier; with other numbers of warps it has.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.packed_rows.sums import MAGIC, float_of_sum, minus, open_record, sub_block_of


@triton.jit
def row_at(place):
    """The row of a tile at `place` 0 .. 15: the even ones, then the odd ones."""
    return place % 8 * 2 + place // 8


@triton.jit
def to_places(x):
    """[blocks, 16, n] in the order of rows -> in the order of places."""
    rows = tl.reshape(x, (x.shape[0], 8, 2, x.shape[2]))
    return tl.reshape(tl.permute(rows, (0, 2, 1, 3)), (x.shape[0], 16, x.shape[2]))


@triton.jit
def from_places(x):
    """[16, n] in the order of places -> in the order of rows."""
    return tl.reshape(tl.permute(tl.reshape(x, (2, 8, x.shape[1])), (1, 0, 2)), (16, x.shape[1]))


@triton.jit
def _halves(x, A: tl.constexpr):
    """[2 * A, 16, 8] -> its two halves [A, 16, 8]."""
    return tl.split(tl.permute(tl.reshape(x, (2, A, 16, 8)), (1, 2, 3, 0)))


@triton.jit
def add_lanes_of_group(acc):
    """acc [8, 16, 8 rows] -> [16, 8]: lanes +4, then +2, then +1."""
    low, high = _halves(acc, 4)
    low, high = _halves(low + high, 2)
    low, high = _halves(low + high, 1)
    return tl.reshape(low + high, (16, 8))


@triton.jit
def add_block_of_group(
    acc, weights, scales, minima, activations, exists, at, offset,
    IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """One block of every lane for eight rows: acc [8, 16, 8]; `at` [8 rows, 8 lanes] numbers their activations."""
    q, records = activations
    byte = tl.arange(0, 32)[None, None, :]
    dx, low, high = open_record(tl.load(records + tl.trans(at)))
    dx = tl.where(exists[:, None], dx, 0.0)[:, None, :]
    q_sums = (low, high) if HALVES == 2 else (low + high,)
    values = tl.load(q + (at[:, :, None] * 32 + byte))
    factors = ()  # before the products: where a scale is first used is where the compiler loads it
    for half in tl.static_range(HALVES):
        factors += (scales[half][:, :, None] * dx,)
    for half in tl.static_range(HALVES):
        of_half = tl.where(byte % 8 // 4 == half, values, 0) if HALVES == 2 else values
        start = q_sums[half] * offset + MAGIC if IS_LINEAR else q_sums[half] * 0 + MAGIC
        start = tl.broadcast_to(start[:, None, :], acc.shape)
        total = tl.dot(weights, tl.permute(of_half, (1, 2, 0)), start, out_dtype=tl.int32)
        acc = tl.fma(factors[half], float_of_sum(total), acc)
    if HAS_MIN:
        for half in tl.static_range(HALVES):
            added = tl.broadcast_to(q_sums[half].to(tl.float32)[:, None, :], acc.shape)
            acc = tl.fma(minima[half][:, :, None] * minus(dx), added, acc)
    return acc


@triton.jit
def load_blocks_of_tile(
    arrays, table, tile, block, blocks,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    """Block `block` [8] of each lane: weights int8 [8, 16, 32], tuples of scales and minima [8, 16], all by places."""
    codes, weight_scales, super_scales, mins, super_mins = arrays
    row = row_at(tl.arange(0, 16))[None, :]
    weights = to_places(CODE(codes, tile * blocks + block, table))
    at_super = ((tile * (blocks // 8) + block // 8) * 16)[:, None] + row
    scales = ()
    minima = ()
    for half in tl.static_range(HALVES):
        at = (sub_block_of(tile, blocks, block, half, SUB_BLOCK) * 16)[:, None] + row
        scales += (SCALE(weight_scales, at, super_scales, at_super),)
        if HAS_MIN:
            minima += (MIN(mins, at, super_mins, at_super),)
    return weights, scales, minima


@triton.jit
def integer_tile_of_groups(
    arrays, activations, table, offset, at_rows, tile, blocks,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One tile of 16 outputs for a tuple of groups of quantized activation rows, int32 [8] each: float32 [16, 8] each.

    UNROLL blocks of a lane are read together, also behind the end: there the last one stands with dx = 0, whose zero
    changes no accumulator (see `load_rows`).
    """
    q, records, row_step, block_step = activations
    q = tl.multiple_of(q.to(tl.pointer_type(tl.int8)), 16)
    GROUPS: tl.constexpr = len(at_rows)
    HALVES: tl.constexpr = 2 if SUB_BLOCK == 16 else 1
    accs = (tl.zeros((8, 16, 8), tl.float32),) * GROUPS
    for turn in tl.range(0, tl.cdiv(blocks, 8 * UNROLL), num_stages=1):
        for step in tl.static_range(UNROLL):
            own = (turn * UNROLL + step) * 8 + tl.arange(0, 8)
            block = tl.minimum(own, blocks - 1)
            weights, scales, minima = load_blocks_of_tile(
                arrays, table, tile, block, blocks, CODE, SCALE, MIN, HAS_MIN, SUB_BLOCK, HALVES
            )
            new = ()
            for group in tl.static_range(GROUPS):
                at = at_rows[group][:, None] * row_step + block[None, :] * block_step
                new += (
                    add_block_of_group(
                        accs[group], weights, scales, minima, (q, records), own < blocks, at, offset,
                        IS_LINEAR, HAS_MIN, HALVES,
                    ),
                )  # fmt: skip
            accs = new
    results = ()
    for group in tl.static_range(GROUPS):
        results += (from_places(add_lanes_of_group(accs[group])),)
    return results
