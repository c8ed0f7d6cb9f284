"""IQ3_XXS and IQ3_S: 256 weights in groups of four from a grid of eight levels, signs apart. Knows their bytes only.

IQ3_XXS: value = d / 4 * (2 * scale + 1) * sign * level; IQ3_S: value = d * (2 * scale + 1) * sign * level; a 4-bit
scale for 32 weights. Sixteen signed levels fit code4: an i-quant grows to 4 bits a weight.
"""

import numpy as np

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits
from strata.quant.formats.grids import EVEN_SIGNS
from strata.quant.formats.grids import IQ3_S as GRID_S
from strata.quant.formats.grids import IQ3_XXS as GRID_XXS
from strata.quant.layout import Code, ScaleKind
from strata.quant.packed import join_codes
from strata.quant.rows import RowMajor

LEVELS_XXS = (4, 12, 20, 28, 36, 44, 52, 62)
LEVELS_S = (1, 3, 5, 7, 9, 11, 13, 15)


def signed_table(levels: tuple[int, ...]) -> tuple[int, ...]:
    """A level's number, and above it the sign's bit -> integer."""
    return (*levels, *(-level for level in levels))


def words32(blocks: Bytes, start: int, count: int) -> np.ndarray:
    """`count` little-endian 32-bit words from byte `start` of every block."""
    return np.ascontiguousarray(blocks[..., start : start + 4 * count]).view(np.uint32)


def sign_codes(signs: Bytes, bit: int) -> Bytes:
    """[.., n] bytes -> [.., 8n]: each sign's bit moved to `bit`."""
    return np.unpackbits(signs, axis=-1, bitorder="little") << np.uint8(bit)


def even_signs(words: np.ndarray) -> Bytes:
    """Four times seven sign bits in each word -> [.., 4 * words] bytes of eight signs."""
    sevens = (words[..., None] >> np.array([0, 7, 14, 21], np.uint32)) & 127
    return EVEN_SIGNS[sevens].reshape(*words.shape[:-1], -1)


def _codes_xxs(blocks: Bytes) -> Bytes:
    levels = GRID_XXS[blocks[..., 2:66]].reshape(*blocks.shape[:-1], 256)
    return levels | sign_codes(even_signs(words32(blocks, 66, 8)), 3)


def _scales_xxs(blocks: Bytes) -> np.ndarray:
    return (2 * (words32(blocks, 66, 8) >> 28) + 1).astype(np.int8)


def _dequantize_xxs(blocks: Bytes) -> Floats:
    scales = half(blocks, 0) * (_scales_xxs(blocks).astype(np.float32) / np.float32(4))
    levels = np.array(signed_table(LEVELS_XXS), np.float32)[_codes_xxs(blocks)]
    return (scales[..., None] * levels.reshape(-1, 8, 32)).reshape(-1, 256)


def _codes_s(blocks: Bytes) -> Bytes:
    high = np.unpackbits(blocks[..., 66:74], axis=-1, bitorder="little").astype(np.uint16) << 8
    levels = GRID_S[blocks[..., 2:66] | high].reshape(*blocks.shape[:-1], 256)
    return levels | sign_codes(blocks[..., 74:106], 3)


def _scales_s(blocks: Bytes) -> np.ndarray:
    packed = blocks[..., 106:110]
    pairs = np.stack((packed & 15, packed >> 4), axis=-1).reshape(*blocks.shape[:-1], 8)
    return (2 * pairs + 1).view(np.int8)


def _dequantize_s(blocks: Bytes) -> Floats:
    scales = half(blocks, 0) * _scales_s(blocks).astype(np.float32)
    levels = np.array(signed_table(LEVELS_S), np.float32)[_codes_s(blocks)]
    return (scales[..., None] * levels.reshape(-1, 8, 32)).reshape(-1, 256)


def rows_of(blocks: Bytes, codes: Bytes, scales: np.ndarray) -> RowMajor:
    """The arrays of a grid format: codes [rows, blocks, 256], scales [rows, blocks, n], d at byte 0."""
    rows = blocks.shape[0]
    words = join_codes(Code.CODE4, codes.reshape(rows, -1))
    return RowMajor(words, scales.reshape(rows, -1), half_bits(blocks, 0))


IQ3_XXS = Format(
    name="IQ3_XXS",
    gguf_type=18,
    block_weights=256,
    block_bytes=98,
    storage=Storage(Code.CODE4, 32, ScaleKind.SUPER, table=signed_table(LEVELS_XXS), post_scale=0.25),
    dequantize_blocks=_dequantize_xxs,
    split_blocks=lambda blocks: rows_of(blocks, _codes_xxs(blocks), _scales_xxs(blocks)),
    half_scales=(0,),
)
IQ3_S = Format(
    name="IQ3_S",
    gguf_type=21,
    block_weights=256,
    block_bytes=110,
    storage=Storage(Code.CODE4, 32, ScaleKind.SUPER, table=signed_table(LEVELS_S)),
    dequantize_blocks=_dequantize_s,
    split_blocks=lambda blocks: rows_of(blocks, _codes_s(blocks), _scales_s(blocks)),
    half_scales=(0,),
)
