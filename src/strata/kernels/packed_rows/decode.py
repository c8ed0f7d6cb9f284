"""Decode steps of the storage codes for Triton kernels: words of four integers, scales and minima of a tile.

Knows the layout of docs/storage-codes.md; knows no activation and no order of additions. A kernel takes these functions
as constexpr arguments. `tile_block` [8, 1] is tile * blocks + block, `row` [1, 16] the row in the tile.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from dataclasses import dataclass

import triton
import triton.language as tl

from strata.kernels.instructions import permute_bytes
from strata.kernels.launch_shapes import is_linear
from strata.kernels.packed_rows.decode_bytes import BYTES
from strata.quant.layout import Code, MatrixLayout, MinKind, ScaleKind


@triton.jit
def no_function():
    """Stands where a matrix has no such step."""


@triton.jit
def words_of_code8(codes, tile_block, row, table):
    """Eight words [8, 16]; word j holds the integers of elements 4j .. 4j + 3."""
    at = codes + (tile_block * 128 + row)
    return (
        tl.load(at),
        tl.load(at + 16),
        tl.load(at + 32),
        tl.load(at + 48),
        tl.load(at + 64),
        tl.load(at + 80),
        tl.load(at + 96),
        tl.load(at + 112),
    )


@triton.jit
def words_of_code4(codes, tile_block, row, table):
    """The codes 0..15 themselves: for tables that are code + offset."""
    at = codes + (tile_block * 64 + row)
    w0, w1, w2, w3 = tl.load(at), tl.load(at + 16), tl.load(at + 32), tl.load(at + 48)
    mask = 0x0F0F0F0F
    words = (w0 & mask, w1 & mask, w2 & mask, w3 & mask)
    words += ((w0 >> 4) & mask, (w1 >> 4) & mask, (w2 >> 4) & mask, (w3 >> 4) & mask)
    return words


@triton.jit
def _look_up_16(word, table):
    """Eight codes of a word -> table entries: (those of the low halves of its bytes, those of the high halves)."""
    index, chosen = word & 0x77777777, ((word >> 1) & 0x44444444) | 0x32103210
    first = index & 0x7777
    a = permute_bytes(
        permute_bytes(table[0], table[1], first), permute_bytes(table[2], table[3], first), chosen & 0x7777
    )
    index, chosen = (index >> 16) & 0x7777, (chosen >> 16) & 0x7777
    b = permute_bytes(permute_bytes(table[0], table[1], index), permute_bytes(table[2], table[3], index), chosen)
    return permute_bytes(a, b, 0x6420), permute_bytes(a, b, 0x7531)


@triton.jit
def words_of_code4_table(codes, tile_block, row, table):
    """Entries of any table of sixteen."""
    at = codes + (tile_block * 64 + row)
    w0, w4 = _look_up_16(tl.load(at), table)
    w1, w5 = _look_up_16(tl.load(at + 16), table)
    w2, w6 = _look_up_16(tl.load(at + 32), table)
    w3, w7 = _look_up_16(tl.load(at + 48), table)
    return w0, w1, w2, w3, w4, w5, w6, w7


@triton.jit
def words_of_code2(codes, tile_block, row, table):
    """The codes 0..3 themselves: for tables that are code + offset."""
    at = codes + (tile_block * 32 + row)
    a, b = tl.load(at), tl.load(at + 16)
    mask = 0x03030303
    words = (a & mask, b & mask, (a >> 2) & mask, (b >> 2) & mask)
    words += ((a >> 4) & mask, (b >> 4) & mask, (a >> 6) & mask, (b >> 6) & mask)
    return words


@triton.jit
def _look_up_4(word, table):
    """Sixteen codes of a word -> table entries of its four fields, rising."""
    even, odd = word & 0x33333333, (word >> 2) & 0x33333333
    a, b = permute_bytes(table[0], table[1], even & 0x3333), permute_bytes(table[0], table[1], even >> 16)
    c, d = permute_bytes(table[0], table[1], odd & 0x3333), permute_bytes(table[0], table[1], odd >> 16)
    return (
        permute_bytes(a, b, 0x6420),
        permute_bytes(c, d, 0x6420),
        permute_bytes(a, b, 0x7531),
        permute_bytes(c, d, 0x7531),
    )


@triton.jit
def words_of_code2_table(codes, tile_block, row, table):
    """Entries of any table of four."""
    at = codes + (tile_block * 32 + row)
    w0, w2, w4, w6 = _look_up_4(tl.load(at), table)
    w1, w3, w5, w7 = _look_up_4(tl.load(at + 16), table)
    return w0, w1, w2, w3, w4, w5, w6, w7


@triton.jit
def widen_e4m3(bits):
    """float8_e4m3fn bits (integers) -> float32, exactly; NaN is refused at load."""
    moved = ((bits & 0x7F) << 20) | ((bits & 0x80) << 24)
    return moved.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120: from the exponent's bias 127 to 7


@triton.jit
def scale_of_f16(scales, at, supers, at_super):
    """Scales as float32; `at` is the element of the sub-block's scale, `at_super` that of its super scale."""
    return tl.load(scales.to(tl.pointer_type(tl.float16)) + at).to(tl.float32)


@triton.jit
def scale_of_e8m0(scales, at, supers, at_super):
    """2^(e - 127); e = 0 is a denormal."""
    exponent = tl.load(scales + at).to(tl.int32)
    return tl.where(exponent == 0, 0x400000, exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_of_ue4m3(scales, at, supers, at_super):
    """float8_e4m3fn without sign."""
    return widen_e4m3(tl.load(scales + at).to(tl.int32))


@triton.jit
def scale_of_super(scales, at, supers, at_super):
    """f16 of 256 columns times int8 of the sub-block: exact."""
    small = tl.load(scales.to(tl.pointer_type(tl.int8)) + at).to(tl.float32)
    return small * tl.load(supers.to(tl.pointer_type(tl.float16)) + at_super).to(tl.float32)


@triton.jit
def scale_of_f32(scales, at, supers, at_super):
    """The float32 itself."""
    return tl.load(scales.to(tl.pointer_type(tl.float32)) + at)


@triton.jit
def min_of_super(mins, at, supers, at_super):
    """f16 of 256 columns times uint8 of the sub-block: exact."""
    small = tl.load(mins + at).to(tl.float32)
    return small * tl.load(supers.to(tl.pointer_type(tl.float16)) + at_super).to(tl.float32)


@triton.jit
def value_of_f32(codes, at):
    """Values of a float code as float32; `at` is the element."""
    return tl.load(codes.to(tl.pointer_type(tl.float32)) + at)


@triton.jit
def value_of_bf16(codes, at):
    """bf16 is the high half of a float32."""
    bits = tl.load(codes.to(tl.pointer_type(tl.uint16)) + at).to(tl.int32)
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def value_of_f16(codes, at):
    """Half precision, widened exactly."""
    return tl.load(codes.to(tl.pointer_type(tl.float16)) + at).to(tl.float32)


@triton.jit
def value_of_fp8(codes, at):
    """float8_e4m3fn, widened exactly."""
    return widen_e4m3(tl.load(codes.to(tl.pointer_type(tl.uint8)) + at).to(tl.int32))


_WORDS = {
    (Code.CODE2, True): words_of_code2,
    (Code.CODE2, False): words_of_code2_table,
    (Code.CODE4, True): words_of_code4,
    (Code.CODE4, False): words_of_code4_table,
    (Code.CODE8, False): words_of_code8,
}
_VALUES = {Code.F32: value_of_f32, Code.BF16: value_of_bf16, Code.F16: value_of_f16, Code.FP8: value_of_fp8}
_SCALES = {
    ScaleKind.F16: scale_of_f16,
    ScaleKind.E8M0: scale_of_e8m0,
    ScaleKind.UE4M3: scale_of_ue4m3,
    ScaleKind.SUPER: scale_of_super,
    ScaleKind.F32: scale_of_f32,
    ScaleKind.NONE: no_function,
}
_MINS = {MinKind.NONE: no_function, MinKind.F16: scale_of_f16, MinKind.SUPER: min_of_super}


@dataclass(frozen=True)
class DecodeSteps:
    """What a kernel needs to know of a matrix's code: constexpr arguments, and integers that vary between matrices."""

    code: object  # words of four integers, or values of a float code
    code_by_bytes: object  # the same integers as bytes, for the matrix units; None for a float code
    common: dict[str, object]  # SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK
    table: tuple[int, int, int, int]  # sixteen int8 in four int32
    offset: int  # of a linear table: integer = code + offset

    def constants(self, by_bytes: bool = False) -> dict[str, object]:
        """The constexpr arguments, CODE among them. Raises ValueError for a float code as bytes."""
        if by_bytes and self.code_by_bytes is None:
            raise ValueError("a float code has no integers for the matrix units: launch it without them")
        return self.common | {"CODE": self.code_by_bytes if by_bytes else self.code}


def decode_steps(layout: MatrixLayout) -> DecodeSteps:
    """Choose the functions for a matrix's code."""
    entries, linear = layout.table, is_linear(layout.table)
    is_float = layout.code.is_float
    common: dict[str, object] = {
        "SCALE": _SCALES[layout.scale_kind],
        "MIN": _MINS[layout.min_kind],
        "IS_FLOAT": is_float,
        "IS_LINEAR": linear,
        "HAS_MIN": layout.min_kind is not MinKind.NONE,
        "SUB_BLOCK": 0 if layout.code is not Code.FP8 and is_float else layout.sub_block,
    }
    padded = bytes(entry & 0xFF for entry in entries).ljust(16, b"\0")
    words = tuple(int.from_bytes(padded[i : i + 4], "little", signed=True) for i in range(0, 16, 4))
    return DecodeSteps(
        _VALUES[layout.code] if is_float else _WORDS[layout.code, linear],
        None if is_float else BYTES[layout.code, linear],
        common,
        (words[0], words[1], words[2], words[3]),
        entries[0] if linear else 0,
    )
