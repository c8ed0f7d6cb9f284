"""IQ2_XXS, IQ2_XS and IQ2_S: 256 weights in groups of eight from a grid of three levels, signs apart. Bytes only.

value = d / 8 * (2 * scale + 1) * sign * level; a 4-bit scale for 32 weights (XXS) or 16. Six signed levels need
code4: an i-quant grows to 4 bits a weight.
"""

import numpy as np

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half
from strata.quant.formats.grids import EVEN_SIGNS
from strata.quant.formats.grids import IQ2_S as GRID_S
from strata.quant.formats.grids import IQ2_XS as GRID_XS
from strata.quant.formats.grids import IQ2_XXS as GRID_XXS
from strata.quant.formats.iq3 import even_signs, rows_of, sign_codes, words32
from strata.quant.layout import Code, ScaleKind

LEVELS = (8, 25, 43)
_TABLE = (*LEVELS, 0, *(-level for level in LEVELS), *[0] * 9)


def _codes_xxs(blocks: Bytes) -> Bytes:
    lead = blocks.shape[:-1]
    groups = blocks[..., 2:].reshape(*lead, 8, 8)  # 4 indices into the grid, then a word of signs and scale
    levels = GRID_XXS[groups[..., :4]].reshape(*lead, 256)
    return levels | sign_codes(even_signs(_words_xxs(blocks)), 2)


def _words_xxs(blocks: Bytes) -> np.ndarray:
    return words32(blocks, 2, 16)[..., 1::2]


def _scales_xxs(blocks: Bytes) -> np.ndarray:
    return (2 * (_words_xxs(blocks) >> 28) + 1).astype(np.int8)


def _codes_xs(blocks: Bytes) -> Bytes:
    entries = np.ascontiguousarray(blocks[..., 2:66]).view(np.uint16)
    levels = GRID_XS[entries & 511].reshape(*blocks.shape[:-1], 256)
    return levels | sign_codes(EVEN_SIGNS[entries >> 9], 2)


def _codes_s(blocks: Bytes) -> Bytes:
    lead = blocks.shape[:-1]
    high = (blocks[..., 66:74, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    levels = GRID_S[blocks[..., 2:34] | (high.reshape(*lead, 32).astype(np.uint16) << 8)].reshape(*lead, 256)
    return levels | sign_codes(blocks[..., 34:66], 2)


def _nibble_scales(blocks: Bytes) -> np.ndarray:
    """The last eight bytes: sixteen scales."""
    packed = blocks[..., -8:]
    pairs = np.stack((packed & 15, packed >> 4), axis=-1).reshape(*blocks.shape[:-1], 16)
    return (2 * pairs + 1).view(np.int8)


def _values(blocks: Bytes, codes: Bytes, scales: np.ndarray) -> Floats:
    wide = half(blocks, 0) * (scales.astype(np.float32) / np.float32(8))
    levels = np.array(_TABLE, np.float32)[codes].reshape(len(blocks), scales.shape[-1], -1)
    return (wide[..., None] * levels).reshape(-1, 256)


def _storage(sub_block: int) -> Storage:
    return Storage(Code.CODE4, sub_block, ScaleKind.SUPER, table=_TABLE, post_scale=0.125)


IQ2_XXS = Format(
    name="IQ2_XXS",
    gguf_type=16,
    block_weights=256,
    block_bytes=66,
    storage=_storage(32),
    dequantize_blocks=lambda blocks: _values(blocks, _codes_xxs(blocks), _scales_xxs(blocks)),
    split_blocks=lambda blocks: rows_of(blocks, _codes_xxs(blocks), _scales_xxs(blocks)),
    half_scales=(0,),
)
IQ2_XS = Format(
    name="IQ2_XS",
    gguf_type=17,
    block_weights=256,
    block_bytes=74,
    storage=_storage(16),
    dequantize_blocks=lambda blocks: _values(blocks, _codes_xs(blocks), _nibble_scales(blocks)),
    split_blocks=lambda blocks: rows_of(blocks, _codes_xs(blocks), _nibble_scales(blocks)),
    half_scales=(0,),
)
IQ2_S = Format(
    name="IQ2_S",
    gguf_type=22,
    block_weights=256,
    block_bytes=82,
    storage=_storage(16),
    dequantize_blocks=lambda blocks: _values(blocks, _codes_s(blocks), _nibble_scales(blocks)),
    split_blocks=lambda blocks: rows_of(blocks, _codes_s(blocks), _nibble_scales(blocks)),
    half_scales=(0,),
)
