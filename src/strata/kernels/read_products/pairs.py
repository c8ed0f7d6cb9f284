"""Weights of small integers and short scales two at a time in bf16, for Triton kernels on a GPU: half the instructions.

The bits are those of weights.py. There a product of integer and scale is exact in float32 and rounded to bf16 once; so
it is here: an integer below 16 is exact in bf16, and so is a scale of eight bits (e8m0, ue4m3). A float16 scale is
the sum of its first eight bits and a rest of three: the integer times the rest is exact in bf16 (seven bits), and one
fma adds the integer times the first eight bits to that and rounds once.

Knows the lanes of weights.py; knows no layout. A pair is an int32 that holds two bf16, of neighbouring columns.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.instructions import permute_bytes


@triton.jit
def marked_nibbles(word):
    """The lowest four bits of each half of a word, as pairs of 128 + nibble: one instruction."""
    return tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, 0x000F000F, $2, 0xEA;", "=r,r,r", [word, tl.full(word.shape, 0x43004300, tl.int32)],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _scaled(value, first, rest, MINUS: tl.constexpr, HAS_REST: tl.constexpr):
    """Pairs of 128 + byte, less a bias, times a scale: pairs.

    first, rest: the scale's two parts as pairs. MINUS: the pair that takes 128 and the bias away.
    """
    minus = tl.full(value.shape, MINUS, tl.int32)
    if HAS_REST:
        pair = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 value, small, one, nothing;
            mov.b32 one, 0x3F803F80; mov.b32 nothing, 0x80008000;
            fma.rn.bf16x2 value, $1, one, $2;
            fma.rn.bf16x2 small, value, $4, nothing;
            fma.rn.bf16x2 $0, value, $3, small;
            }
            """,
            "=r,r,r,r,r", [value, minus, first, rest], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        pair = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 value, one, nothing;
            mov.b32 one, 0x3F803F80; mov.b32 nothing, 0x80008000;
            fma.rn.bf16x2 value, $1, one, $2;
            fma.rn.bf16x2 $0, value, $3, nothing;
            }
            """,
            "=r,r,r,r", [value, minus, first], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return pair


@triton.jit
def scale_pairs(scale, KB: tl.constexpr, HAS_REST: tl.constexpr):
    """float32 [M, KB or 2 * KB] -> for each half of a block a scale's first eight bits and the rest: pairs [M, KB, 1].

    A pair holds the same number twice.
    """
    M: tl.constexpr = scale.shape[0]
    bits = scale.to(tl.int32, bitcast=True)
    twice = tl.full(scale.shape, 0x3232, tl.int32)
    first = permute_bytes(bits, bits, twice)
    rest = first
    if HAS_REST:
        rest_bits = (scale - (bits & -65536).to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
        rest = permute_bytes(rest_bits, rest_bits, twice)
    if scale.shape[1] == KB:
        first, rest = tl.reshape(first, (M, KB, 1)), tl.reshape(rest, (M, KB, 1))
        halves = ((first, rest), (first, rest))
    else:
        low, high = tl.split(tl.reshape(first, (M, KB, 1, 2)))
        low_rest, high_rest = tl.split(tl.reshape(rest, (M, KB, 1, 2)))
        halves = ((low, low_rest), (high, high_rest))
    return halves


@triton.jit
def _weights(
    low, high, scale, MINUS: tl.constexpr, HAS_REST: tl.constexpr
):  # fmt: skip
    """low, high: pairs of 128 + byte of both halves of a block, of one lane each -> bf16 in the order of columns."""
    M: tl.constexpr = low.shape[0]
    KB: tl.constexpr = low.shape[1]
    halves = scale_pairs(scale, KB, HAS_REST)
    low = _scaled(
        low, tl.broadcast_to(halves[0][0], (M, KB, 8)), tl.broadcast_to(halves[0][1], (M, KB, 8)),
        MINUS, HAS_REST,
    )  # fmt: skip
    high = _scaled(
        high, tl.broadcast_to(halves[1][0], (M, KB, 8)), tl.broadcast_to(halves[1][1], (M, KB, 8)),
        MINUS, HAS_REST,
    )  # fmt: skip
    pair = tl.join(low, high)
    even = (pair & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    odd = ((pair >> 16) & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    values = tl.permute(tl.join(even, odd), (0, 1, 3, 2, 4))  # .. half, lane, neighbour
    return tl.reshape(values, (M, KB * 32))


@triton.jit
def pairs_of_code4(lanes, scale, TABLE: tl.constexpr, HAS_REST: tl.constexpr):
    """Lanes [M, KB, 8] of a table that is code + offset -> bf16 [M, KB * 32]. TABLE: (MINUS,)."""
    apart = permute_bytes(lanes, lanes * 0, tl.full(lanes.shape, 0x4140, tl.int32))  # a byte in each half of a word
    low, high = marked_nibbles(apart), marked_nibbles(apart >> 4)
    return _weights(low, high, scale, TABLE[0], HAS_REST)


@triton.jit
def pairs_of_code4_table(lanes, scale, TABLE: tl.constexpr, HAS_REST: tl.constexpr):
    """Lanes of any table of sixteen. TABLE: (MINUS, four words of bytes that are entry + `pair_tables.TABLE_BIAS`)."""
    index, chosen = lanes & 0x7777, ((lanes >> 1) & 0x4444) | 0x3210
    low = permute_bytes(
        tl.full(lanes.shape, TABLE[1], tl.int32), tl.full(lanes.shape, TABLE[2], tl.int32), index
    )  # fmt: skip
    high = permute_bytes(
        tl.full(lanes.shape, TABLE[3], tl.int32), tl.full(lanes.shape, TABLE[4], tl.int32), index
    )  # fmt: skip
    word = permute_bytes(low, high, chosen)  # of byte 0 both halves, of byte 1 both
    above = tl.full(lanes.shape, 0x43, tl.int32)
    low = permute_bytes(word, above, tl.full(lanes.shape, 0x4240, tl.int32))
    high = permute_bytes(word, above, tl.full(lanes.shape, 0x4341, tl.int32))
    return _weights(low, high, scale, TABLE[0], HAS_REST)
