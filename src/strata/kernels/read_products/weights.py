"""Weights of packed matrices as operands of matrix units, for Triton kernels: decoded in registers, rounded to bf16.

Knows the layout of docs/storage-codes.md; knows no activation and no launch. A weight is what `PackedMatrix.decode`
says without the post scale - scale * integer - minimum, each step rounded to float32 -, rounded once to bf16. Float
codes give parts whose sum is the value: bf16 one, f16 two, f32 three; fp8 one, rounded.

Everything from a load to the operand is elementwise, a view or a constant: then the compiler loads in the matrix unit's
own layout and moves no value between threads. For the same reason tables are constants, and small loads are widened
until the compiler copies them ahead. Integer codes are read as lanes of 16 bits, the low and the high half of a word:
what one thread's fragment holds of a word.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.launch_shapes import is_linear
from strata.kernels.packed_rows.decode import no_function, widen_e4m3
from strata.kernels.read_products.pair_tables import TABLE_BIAS, minus_pair, suits_pairs
from strata.kernels.read_products.pairs import pairs_of_code4, pairs_of_code4_table
from strata.kernels.read_products.values import (
    bf16_parts,
    f16_parts,
    f32_parts,
    integers_of_code2,
    integers_of_code2_table,
    integers_of_code4,
    integers_of_code4_table,
    integers_of_code8,
    widen_e8m0,
    widen_f16,
    widen_f32,
    widen_int8,
    widen_ue4m3,
    widen_uint8,
)
from strata.quant.layout import Code, MatrixLayout, MinKind, ScaleKind


@triton.jit
def load_ahead(pointers, is_there, EVEN: tl.constexpr, BYTES: tl.constexpr, WARPS: tl.constexpr):
    """pointers [P, S, 16] to elements of BYTES -> what lies there; EVEN, or 0 where is_there [1, S, 1] is not.

    A load is copied ahead of its use only if each thread copies four bytes or more: a smaller one is made repeatedly.
    """
    P: tl.constexpr = pointers.shape[0]
    S: tl.constexpr = pointers.shape[1]
    LEAST: tl.constexpr = 128 * WARPS // (P * S * 16 * BYTES)
    if LEAST <= 1:
        values = tl.load(pointers) if EVEN else tl.load(pointers, mask=is_there, other=0)
    else:
        wide = tl.broadcast_to(pointers[:, :, None, :], (P, S, LEAST, 16))
        values = tl.load(wide) if EVEN else tl.load(wide, mask=is_there[:, :, None, :], other=0)
        values = tl.permute(values, (0, 1, 3, 2))
        for halving in tl.static_range(5):
            if LEAST >> halving > 1:
                values = tl.split(tl.reshape(values, (P, S, 16, LEAST >> (halving + 1), 2)))[0]
        values = tl.reshape(values, (P, S, 16))
    return values


@triton.jit
def by_row(values, PAIRED: tl.constexpr):
    """[P, S, 16] of P tiles -> [P * 16, S] by row; PAIRED: P / 2 tiles of one matrix, then as many of another.

    Their rows then come in turns of eight, so that one thread has the same row of both.
    """
    P: tl.constexpr = values.shape[0]
    S: tl.constexpr = values.shape[1]
    if PAIRED:
        values = tl.permute(tl.reshape(values, (2, P // 2, S, 2, 8)), (1, 3, 0, 4, 2))
    else:
        values = tl.permute(values, (0, 2, 1))
    return tl.reshape(values, (P * 16, S))


@triton.jit
def lanes_by_row(lanes, WORDS: tl.constexpr, PAIRED: tl.constexpr):
    """int16 [P, KB, WORDS * 32] of whole blocks -> int32 [P * 16, KB, WORDS * 2], 16 bits each; rows as `by_row`."""
    P: tl.constexpr = lanes.shape[0]
    KB: tl.constexpr = lanes.shape[1]
    if PAIRED:
        lanes = tl.permute(tl.reshape(lanes, (2, P // 2, KB, WORDS, 2, 8, 2)), (1, 4, 0, 5, 2, 3, 6))
    else:
        lanes = tl.permute(tl.reshape(lanes, (P, KB, WORDS, 16, 2)), (0, 3, 1, 2, 4))
    return tl.reshape(lanes, (P * 16, KB, WORDS * 2)).to(tl.int32)


@triton.jit
def numbers_by_row(
    pointers, first, count, S: tl.constexpr, WIDEN: tl.constexpr, BYTES: tl.constexpr, PAIRED: tl.constexpr,
    EVEN: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """S numbers a row from number `first` on, of `count`: float32 [P * 16, S]. pointers [P]: to a tile's first one."""
    number = first + tl.arange(0, S)[None, :, None]
    at = pointers[:, None, None] + (number * 16 + tl.arange(0, 16)[None, None, :])
    return WIDEN(by_row(load_ahead(at, number < count, EVEN, BYTES, WARPS), PAIRED))


@triton.jit
def scaled_weights(
    tiles, step, values, scale, columns, MIN: tl.constexpr, SIZES: tl.constexpr, PAIRED: tl.constexpr,
    KB: tl.constexpr, EVEN: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Integers as float32 [M, KB, 32] and scales [M, S] -> weights bf16 [M, KB * 32], by the definition's steps."""
    S: tl.constexpr = scale.shape[1]
    subs, supers = columns // SIZES[5], columns // 256
    if SIZES[2] > 0:
        scale *= numbers_by_row(tiles[2], step * KB // 8, supers, 1, widen_f16, 2, PAIRED, EVEN, WARPS)
    values = tl.reshape(values, (values.shape[0], S, SIZES[5])) * scale[:, :, None]
    if SIZES[3] > 0:
        least = numbers_by_row(tiles[3], step * S, subs, S, MIN, SIZES[3], PAIRED, EVEN, WARPS)
        if SIZES[4] > 0:
            least *= numbers_by_row(tiles[4], step * KB // 8, supers, 1, widen_f16, 2, PAIRED, EVEN, WARPS)
        values -= least[:, :, None]
    return tl.reshape(values.to(tl.bfloat16), (values.shape[0], KB * 32))


@triton.jit
def integer_weights(
    tiles, step, columns, CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, TABLE: tl.constexpr,
    SIZES: tl.constexpr, PAIRED: tl.constexpr, KB: tl.constexpr, EVEN: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Step `step` of KB blocks of an integer code: bf16 [P * 16, KB * 32]. tiles: see `tiles_of`; SIZES: `Sizes`."""
    LANES: tl.constexpr = SIZES[0] * 32
    SUB_BLOCK: tl.constexpr = SIZES[5]
    S: tl.constexpr = KB * 32 // SUB_BLOCK
    blocks, subs = columns // 32, columns // SUB_BLOCK
    block = step * KB + tl.arange(0, KB)[None, :, None]
    at = tiles[0][:, None, None] + (block * LANES + tl.arange(0, LANES)[None, None, :])
    lanes = tl.load(at) if EVEN else tl.load(at, mask=block < blocks, other=0)
    lanes = lanes_by_row(lanes, SIZES[0], PAIRED)
    scale = numbers_by_row(tiles[1], step * S, subs, S, SCALE, SIZES[1], PAIRED, EVEN, WARPS)
    if SIZES[6] > 0:
        weights = CODE(lanes, scale, TABLE, SIZES[6] == 2)
    else:
        weights = scaled_weights(tiles, step, CODE(lanes, TABLE), scale, columns, MIN, SIZES, PAIRED, KB, EVEN, WARPS)
    return weights


@triton.jit
def float_weights(
    tiles, step, columns, CODE: tl.constexpr, SIZES: tl.constexpr, PAIRED: tl.constexpr, KB: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Step `step` of KB * 32 columns of a float code: its parts, bf16 [P * 16, KB * 32] each."""
    column = step * (KB * 32) + tl.arange(0, KB * 32)[None, :, None]
    row = tl.arange(0, 16)[None, None, :]
    at = tiles[0][:, None, None] + (column * 16 + row)
    bits = tl.load(at) if EVEN else tl.load(at, mask=column < columns, other=0)
    if SIZES[1] > 0:  # fp8
        at = tiles[1][:, None, None] + (column // SIZES[5] * 16 + row)
        scale = by_row(tl.load(at) if EVEN else tl.load(at, mask=column < columns, other=0), PAIRED)
        values = widen_e4m3(by_row(bits, PAIRED).to(tl.int32)) * widen_f32(scale)
        parts = (values.to(tl.bfloat16),)
    elif SIZES[0] == 2:
        bits = tl.permute(tl.reshape(bits, (bits.shape[0], KB * 16, 2, 16)), (0, 1, 3, 2))
        even, odd = tl.split(bits)
        parts = CODE(by_row(even, PAIRED), by_row(odd, PAIRED))
    else:
        parts = CODE(by_row(bits, PAIRED))
    return parts


@triton.jit
def elements_of(array, BYTES: tl.constexpr):
    """Pointers to bytes -> to integers of BYTES (1, 2 or 4; 0 stands for an array that there is not)."""
    if BYTES == 2:
        array = array.to(tl.pointer_type(tl.int16))
    elif BYTES == 4:
        array = array.to(tl.pointer_type(tl.int32))
    return array


@triton.jit
def tiles_of(arrays, tile, columns, SIZES: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Where each tile's part of the five arrays begins: tuples of pointers [P] to integers, as the loads take them.

    arrays: pointers to bytes, scalars or [P]; tile int32 [P]: the number of the tile in its matrix.
    """
    WORD: tl.constexpr = SIZES[0] if IS_FLOAT else 2
    row = columns if IS_FLOAT else columns // 32 * (SIZES[0] * 2)
    subs = (columns + SIZES[5] - 1) // SIZES[5] if SIZES[1] > 0 else 0
    supers = columns // 256
    return (
        elements_of(arrays[0], WORD) + tile * (row * 16),
        elements_of(arrays[1], SIZES[1]) + tile * (subs * 16),
        elements_of(arrays[2], SIZES[2]) + tile * (supers * 16),
        elements_of(arrays[3], SIZES[3]) + tile * (subs * 16),
        elements_of(arrays[4], SIZES[4]) + tile * (supers * 16),
    )


_INTEGERS = {
    (Code.CODE2, True): integers_of_code2,
    (Code.CODE2, False): integers_of_code2_table,
    (Code.CODE4, True): integers_of_code4,
    (Code.CODE4, False): integers_of_code4_table,
    (Code.CODE8, False): integers_of_code8,
}
_PARTS = {Code.BF16: bf16_parts, Code.F16: f16_parts, Code.F32: f32_parts, Code.FP8: no_function}
_SCALES = {
    ScaleKind.F16: (widen_f16, 2),
    ScaleKind.E8M0: (widen_e8m0, 1),
    ScaleKind.UE4M3: (widen_ue4m3, 1),
    ScaleKind.SUPER: (widen_int8, 1),
    ScaleKind.F32: (widen_f32, 4),
    ScaleKind.NONE: (no_function, 0),
}
_MINS = {MinKind.NONE: (no_function, 0), MinKind.F16: (widen_f16, 2), MinKind.SUPER: (widen_uint8, 1)}


def weight_constants(layout: MatrixLayout, by_pairs: bool = True) -> dict[str, object]:
    """The constexpr arguments that say how a matrix's weights are decoded; `by_pairs` where that is possible."""
    code, table = _code_and_table(layout)
    scale, scale_bytes = _SCALES[layout.scale_kind]
    least, least_bytes = _MINS[layout.min_kind]
    pairs = 0
    if by_pairs and not triton.knobs.runtime.interpret and suits_pairs(layout):
        pairs = 2 if layout.scale_kind is ScaleKind.F16 else 1
        code = pairs_of_code4 if is_linear(layout.table) else pairs_of_code4_table
        minus = minus_pair(-layout.table[0] if is_linear(layout.table) else TABLE_BIAS)
        table = (minus, *_biased_words(layout.table, TABLE_BIAS))
    return {
        "CODE": code,
        "SCALE": scale,
        "MIN": least,
        "TABLE": table,
        "SIZES": (
            layout.code.bits // 8 if layout.code.is_float else layout.code.bits,
            scale_bytes,
            2 if layout.scale_kind is ScaleKind.SUPER else 0,
            least_bytes,
            2 if layout.min_kind is MinKind.SUPER else 0,
            layout.sub_block,
            pairs,
        ),
        "IS_FLOAT": layout.code.is_float,
    }


def _code_and_table(layout: MatrixLayout) -> tuple[object, tuple[int, ...]]:
    if layout.code.is_float:
        return _PARTS[layout.code], ()
    if is_linear(layout.table):
        return _INTEGERS[layout.code, True], (layout.table[0],)
    return _INTEGERS[layout.code, False], _biased_words(layout.table, 128)


def _biased_words(table: tuple[int, ...], bias: int) -> tuple[int, ...]:
    """Sixteen bytes, entry + bias each, in four words; what a shorter table leaves is zero."""
    padded = bytes(entry + bias for entry in table).ljust(16, b"\0")
    return tuple(int.from_bytes(padded[i : i + 4], "little", signed=True) for i in range(0, 16, 4))
