"""IQ4_NL and IQ4_XS: 4-bit codes into sixteen uneven levels. Knows their bytes only.

IQ4_NL: 32 weights share an f16 d, value = d * level. IQ4_XS: 256 weights, 32 share a 6-bit scale,
value = d * (scale - 32) * level.
"""

import numpy as np
from numpy.typing import NDArray

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits, nibbles, words_of_nibbles
from strata.quant.formats.fitting import as_half, fit_levels, to_half
from strata.quant.layout import Code, ScaleKind
from strata.quant.rows import RowMajor

LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_TABLE = np.array(LEVELS, np.float32)


def _dequantize_nl(blocks: Bytes) -> Floats:
    return half(blocks, 0) * _TABLE[nibbles(blocks[:, 2:])]


def _split_nl(blocks: Bytes) -> RowMajor:
    return RowMajor(words_of_nibbles(blocks, 2), half_bits(blocks, 0))


def _quantize_nl(values: Floats) -> Bytes:
    peak = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)
    tried = (peak / np.float32(end) for end in (-127, 113))
    scale, codes = fit_levels(values, LEVELS, tried, as_half)
    return np.concatenate((to_half(scale).view(np.uint8), codes[:, :16] | (codes[:, 16:] << 4)), axis=1)


def _scales_xs(blocks: Bytes) -> NDArray[np.int8]:
    """[.., bytes] -> -32..31 [.., 8]: low four bits two a byte, high two bits in a 16-bit word."""
    lead = blocks.shape[:-1]
    low = np.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), axis=-1).reshape(*lead, 8)
    high = (blocks[..., 2:4, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    return (low | (high.reshape(*lead, 8) << 4)).view(np.int8) - np.int8(32)


def _dequantize_xs(blocks: Bytes) -> Floats:
    scales = half(blocks, 0) * _scales_xs(blocks).astype(np.float32)
    levels = _TABLE[nibbles(blocks[:, 8:].reshape(-1, 8, 16))]
    return (scales[..., None] * levels).reshape(-1, 256)


def _split_xs(blocks: Bytes) -> RowMajor:
    rows = blocks.shape[0]
    words = np.ascontiguousarray(blocks[..., 8:]).view(np.uint32).reshape(rows, -1, 4)
    return RowMajor(words, _scales_xs(blocks).reshape(rows, -1), half_bits(blocks, 0))


IQ4_NL = Format(
    name="IQ4_NL",
    gguf_type=20,
    block_weights=32,
    block_bytes=18,
    storage=Storage(Code.CODE4, 32, ScaleKind.F16, table=LEVELS),
    dequantize_blocks=_dequantize_nl,
    split_blocks=_split_nl,
    quantize_blocks=_quantize_nl,
    half_scales=(0,),
)
IQ4_XS = Format(
    name="IQ4_XS",
    gguf_type=23,
    block_weights=256,
    block_bytes=136,
    storage=Storage(Code.CODE4, 32, ScaleKind.SUPER, table=LEVELS),
    dequantize_blocks=_dequantize_xs,
    split_blocks=_split_xs,
    half_scales=(0,),
)
