"""Small steps that every tile of packed rows shares, whichever unit forms its sums. Knows no tile and no loop."""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

# Sums start at the bits of 1.5 * 2^23. A block's sum is below 2^20, so that start + sum are the bits of the float
# 1.5 * 2^23 + sum: one subtraction makes it a float, exactly, where a conversion takes a slower unit.
MAGIC = tl.constexpr(0x4B400000)


@triton.jit
def float_of_sum(total):
    """int32 that was begun at MAGIC -> the float32 of what was added to it; no sum gives +0."""
    return total.to(tl.float32, bitcast=True) - 12582912.0


@triton.jit
def open_record(record):
    """A record of one block of activations, int64 -> its d (float32), its sums over the low and the high 16 columns."""
    halves = (record >> 32).to(tl.int32)
    return record.to(tl.int32).to(tl.float32, bitcast=True), (halves << 16) >> 16, halves >> 16


@triton.jit
def minus(x):
    """-x with the sign of zero turned too, which `-x` would lose."""
    return (x.to(tl.int32, bitcast=True) ^ -2147483648).to(tl.float32, bitcast=True)


@triton.jit
def sub_block_of(tile, blocks, block, half: tl.constexpr, SUB_BLOCK: tl.constexpr):
    """The number of a block's (or a half block's) scale among those of all tiles, in units of 16 rows."""
    if SUB_BLOCK == 16:
        number = (tile * blocks + block) * 2 + half
    elif SUB_BLOCK == 32:
        number = tile * blocks + block
    else:
        number = tile * (blocks // 2) + block // 2
    return number
