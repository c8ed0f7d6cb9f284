"""Integers, scales and parts of the storage codes as float32, for Triton kernels that multiply bf16.

Knows what a code's bits mean (docs/storage-codes.md); knows no memory and no row. Each function is elementwise or
a view: see weights.py.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.instructions import permute_bytes
from strata.kernels.packed_rows.decode import widen_e4m3

MAGIC = tl.constexpr(0x4B000000)  # the bits of 2^23; with a byte below them, those of 2^23 + byte


@triton.jit
def constant(like, VALUE: tl.constexpr):
    """A block of one integer."""
    return tl.full(like.shape, VALUE, tl.int32)


@triton.jit
def float_of_byte(word, BYTE: tl.constexpr, BIAS: tl.constexpr):
    """Byte BYTE of each word, unsigned, less BIAS: exact."""
    bits = permute_bytes(word, constant(word, MAGIC), constant(word, 0x7650 | BYTE))
    return bits.to(tl.float32, bitcast=True) - (8388608.0 + BIAS)


@triton.jit
def float_of_marked(word, BYTE: tl.constexpr, BIAS: tl.constexpr):
    """The same of words whose byte 2 is zero and whose byte 3 is that of MAGIC: an instruction takes one constant."""
    bits = permute_bytes(word, word, constant(word, 0x3220 | BYTE))
    return bits.to(tl.float32, bitcast=True) - (8388608.0 + BIAS)


@triton.jit
def integers_of_code8(lanes, TABLE: tl.constexpr):
    """Lanes [M, KB, 16] -> the integers as float32 [M, KB, 32]."""
    word = (lanes & 0xFFFF) ^ (MAGIC | 0x8080)
    values = tl.join(float_of_marked(word, 0, 128), float_of_marked(word, 1, 128))
    return tl.reshape(values, (lanes.shape[0], lanes.shape[1], 32))


@triton.jit
def _order_of_code4(a0, b0, a1, b1):
    """Low and high nibbles of byte 0, then of byte 1, [M, KB, 8] each -> [M, KB, 32]."""
    values = tl.join(tl.join(a0, b0), tl.join(a1, b1))  # .. lane, half of the block, byte
    return tl.reshape(tl.permute(values, (0, 1, 3, 2, 4)), (a0.shape[0], a0.shape[1], 32))


@triton.jit
def integers_of_code4(lanes, TABLE: tl.constexpr):
    """For tables that are code + TABLE[0]."""
    low, high = (lanes & 0x0F0F) | MAGIC, ((lanes >> 4) & 0x0F0F) | MAGIC
    BIAS: tl.constexpr = -TABLE[0]
    return _order_of_code4(
        float_of_marked(low, 0, BIAS), float_of_marked(high, 0, BIAS), float_of_marked(low, 1, BIAS),
        float_of_marked(high, 1, BIAS),
    )  # fmt: skip


@triton.jit
def integers_of_code4_table(lanes, TABLE: tl.constexpr):
    """Entries of any table of sixteen, in four words of bytes that are entry + 128."""
    index, chosen = lanes & 0x7777, ((lanes >> 1) & 0x4444) | 0x3210
    word = permute_bytes(
        permute_bytes(constant(lanes, TABLE[0]), constant(lanes, TABLE[1]), index),
        permute_bytes(constant(lanes, TABLE[2]), constant(lanes, TABLE[3]), index),
        chosen,
    )
    return _order_of_code4(
        float_of_byte(word, 0, 128), float_of_byte(word, 1, 128), float_of_byte(word, 2, 128),
        float_of_byte(word, 3, 128),
    )  # fmt: skip


@triton.jit
def _order_of_code2(a, b):
    """Tuples of the four fields of byte 0 and of byte 1, [M, KB, 4] each -> [M, KB, 32]."""
    first = tl.join(tl.join(a[0], a[2]), tl.join(a[1], a[3]))  # .. lane, high bit of the field, low bit
    second = tl.join(tl.join(b[0], b[2]), tl.join(b[1], b[3]))
    values = tl.permute(tl.join(first, second), (0, 1, 3, 4, 2, 5))
    return tl.reshape(values, (a[0].shape[0], a[0].shape[1], 32))


@triton.jit
def integers_of_code2(lanes, TABLE: tl.constexpr):
    """For tables that are code + TABLE[0]."""
    BIAS: tl.constexpr = -TABLE[0]
    first = ()
    second = ()
    for field in tl.static_range(4):
        word = ((lanes >> (2 * field)) & 0x0303) | MAGIC
        first += (float_of_marked(word, 0, BIAS),)
        second += (float_of_marked(word, 1, BIAS),)
    return _order_of_code2(first, second)


@triton.jit
def integers_of_code2_table(lanes, TABLE: tl.constexpr):
    """Entries of any table of four, in a word of bytes that are entry + 128."""
    table = constant(lanes, TABLE[0])
    even = permute_bytes(table, table, lanes & 0x3333)  # fields 0 and 2 of byte 0, then of byte 1
    odd = permute_bytes(table, table, (lanes >> 2) & 0x3333)
    first = (
        float_of_byte(even, 0, 128), float_of_byte(odd, 0, 128), float_of_byte(even, 1, 128), float_of_byte(odd, 1, 128)
    )  # fmt: skip
    second = (
        float_of_byte(even, 2, 128), float_of_byte(odd, 2, 128), float_of_byte(even, 3, 128), float_of_byte(odd, 3, 128)
    )  # fmt: skip
    return _order_of_code2(first, second)


@triton.jit
def widen_f16(bits):
    """The value of int16 bits of a float16."""
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def widen_e8m0(bits):
    """2^(e - 127) of uint8 e; e = 0 is a denormal."""
    exponent = bits.to(tl.int32)
    return tl.where(exponent == 0, 0x400000, exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def widen_ue4m3(bits):
    """float8_e4m3fn without sign, of uint8."""
    return widen_e4m3(bits.to(tl.int32))


@triton.jit
def widen_int8(bits):
    """An integer as a float, of uint8 that holds an int8."""
    return ((bits.to(tl.int32) ^ 0x80) | MAGIC).to(tl.float32, bitcast=True) - (8388608.0 + 128)


@triton.jit
def widen_uint8(bits):
    """An integer as a float."""
    return (bits.to(tl.int32) | MAGIC).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def widen_f32(bits):
    """The float32 of int32 bits."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def side_by_side(even, odd):
    """Values [M, K / 2] of even columns and of odd ones -> [M, K]."""
    return tl.reshape(tl.join(even, odd), (even.shape[0], even.shape[1] * 2))


@triton.jit
def bf16_parts(even, odd):
    """int16 bits of bf16 in even and in odd columns: themselves. A pair takes both, so that the compiler sees a result.

    What it takes for a plain load goes another, slower way to the matrix unit.
    """
    pair = (even.to(tl.int32) & 0xFFFF) | (odd.to(tl.int32) << 16)
    first = (pair & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    second = ((pair >> 16) & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return (side_by_side(first, second),)


@triton.jit
def f16_parts(even, odd):
    """int16 bits of float16 in even and in odd columns -> two bf16 whose sum is the value, the smaller first."""
    even, odd = widen_f16(even), widen_f16(odd)
    even_high, odd_high = even.to(tl.bfloat16), odd.to(tl.bfloat16)
    even_rest, odd_rest = even - even_high.to(tl.float32), odd - odd_high.to(tl.float32)
    return side_by_side(even_rest.to(tl.bfloat16), odd_rest.to(tl.bfloat16)), side_by_side(even_high, odd_high)


@triton.jit
def f32_parts(bits):
    """int32 bits of float32 -> three bf16 whose sum is the value, the smallest first."""
    value = widen_f32(bits)
    high = value.to(tl.bfloat16)
    rest = value - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return (rest - middle.to(tl.float32)).to(tl.bfloat16), middle, high
