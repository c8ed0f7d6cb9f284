"""A tile of packed rows for groups of eight activation rows by the GPU's matrix units (int8 products, int32 sums).

Knows lanes and their order; decode_bytes.py knows the codes. A block's sum is exact whoever forms it, and what follows
it is what triton.py does, operation by operation: the bits are the same. Float codes have no exact sums and stay there.

With eight warps, one a lane, blocks come out of memory in the registers where the matrix units want them (the compiler
moves rows between threads by shuffles): the loop has no shared memory and no barrier. Other numbers of warps have both.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.packed_rows.sums import MAGIC, float_of_sum, minus, open_record, sub_block_of


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
def integer_tile_of_groups(
    arrays, activations, table, offset, at_rows, tile, blocks,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One tile of 16 outputs for a tuple of groups of quantized activation rows, int32 [8] each: float32 [16, 8] each.

    A lane without a block reads the last one with dx = 0: see `integer_tile`.
    """
    codes, weight_scales, super_scales, mins, super_mins = arrays
    q, records, row_step, block_step = activations
    q = tl.multiple_of(q.to(tl.pointer_type(tl.int8)), 16)
    GROUPS: tl.constexpr = len(at_rows)
    HALVES: tl.constexpr = 2 if SUB_BLOCK == 16 else 1
    lane, row = tl.arange(0, 8), tl.arange(0, 16)[None, :]
    accs = (tl.zeros((8, 16, 8), tl.float32),) * GROUPS
    for step in tl.range(0, tl.cdiv(blocks, 8), loop_unroll_factor=UNROLL, num_stages=1):
        exists = step * 8 + lane < blocks
        block = tl.minimum(step * 8 + lane, blocks - 1)
        weights = CODE(codes, tile * blocks + block, table)
        at_super = ((tile * (blocks // 8) + block // 8) * 16)[:, None] + row
        scales = ()
        minima = ()
        for half in tl.static_range(HALVES):
            at = (sub_block_of(tile, blocks, block, half, SUB_BLOCK) * 16)[:, None] + row
            scales += (SCALE(weight_scales, at, super_scales, at_super),)
            if HAS_MIN:
                minima += (MIN(mins, at, super_mins, at_super),)
        new = ()
        for group in tl.static_range(GROUPS):
            at = at_rows[group][:, None] * row_step + block[None, :] * block_step
            new += (
                add_block_of_group(
                    accs[group], weights, scales, minima, (q, records), exists, at, offset, IS_LINEAR, HAS_MIN, HALVES
                ),
            )
        accs = new
    results = ()
    for group in tl.static_range(GROUPS):
        results += (add_lanes_of_group(accs[group]),)
    return results
