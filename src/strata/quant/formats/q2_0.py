"""Q2_0: 64 weights share an f16 scale d; value = d * (code - 1), four codes a byte from the low bits. Bytes only."""

import numpy as np
from numpy.typing import NDArray

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits
from strata.quant.formats.fitting import fit_signed, to_half
from strata.quant.layout import Code, ScaleKind
from strata.quant.rows import RowMajor

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def _codes(blocks: Bytes) -> Bytes:
    return ((blocks[..., 2:, None] >> _SHIFTS) & np.uint8(3)).reshape(*blocks.shape[:-1], 64)


def _dequantize(blocks: Bytes) -> Floats:
    return half(blocks, 0) * (_codes(blocks).astype(np.float32) - 1)


def _words(packed: Bytes) -> NDArray[np.uint32]:
    """Published bytes [rows, blocks, 16] -> code2's words [rows, blocks of 32, 2].

    Word j holds element 8f + 4j + k at bits 2f of byte k; the file has it at bits 2k of byte 2f + j. So the bytes of
    a word are rows of four 2-bit fields, and two exchanges of fields turn rows into columns.
    """
    rows = packed.shape[0]
    by_word = packed.reshape(rows, -1, 4, 2).transpose(0, 1, 3, 2)  # [rows, blocks of 32, j, f]
    words = np.ascontiguousarray(by_word).view(np.uint32)[..., 0]
    for distance, fields in ((6, 0x00CC00CC), (12, 0x0000F0F0)):
        exchanged = (words ^ (words >> np.uint32(distance))) & np.uint32(fields)
        words ^= exchanged
        words ^= exchanged << np.uint32(distance)
    return words


def _split(blocks: Bytes) -> RowMajor:
    return RowMajor(_words(blocks[..., 2:]), half_bits(blocks, 0))


def _quantize(values: Floats) -> Bytes:
    scale, codes = fit_signed(values, -1, 2)
    words = (codes + np.int8(1)).view(np.uint32)  # four codes, one a byte
    joined = words | (words >> np.uint32(6)) | (words >> np.uint32(12)) | (words >> np.uint32(18))
    return np.concatenate((to_half(scale).view(np.uint8), joined.astype(np.uint8)), axis=1)


Q2_0 = Format(
    name="Q2_0",
    gguf_type=42,
    block_weights=64,
    block_bytes=18,
    storage=Storage(Code.CODE2, 64, ScaleKind.F16, table=(-1, 0, 1, 2)),
    dequantize_blocks=_dequantize,
    split_blocks=_split,
    quantize_blocks=_quantize,
    half_scales=(0,),
)
