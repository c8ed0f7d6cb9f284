"""Q3_K: 256 weights of 3 bits; 16 share a 6-bit scale of an f16 d. Knows its bytes only.

value = d * (scale - 32) * (code - 4): two bits of a code lie together, the third bits in a mask.
"""

import numpy as np
from numpy.typing import NDArray

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits
from strata.quant.formats.q2_k import two_bit_codes
from strata.quant.layout import Code, ScaleKind
from strata.quant.packed import join_codes
from strata.quant.rows import RowMajor


def _codes(blocks: Bytes) -> Bytes:
    """[.., bytes] -> codes 0..7 [.., 256]."""
    bits = np.arange(8, dtype=np.uint8)[:, None]
    third = ((blocks[..., None, :32] >> bits) & np.uint8(1)).reshape(*blocks.shape[:-1], 256)
    return two_bit_codes(blocks[..., 32:96]) | (third << np.uint8(2))


def _scales(blocks: Bytes) -> NDArray[np.int8]:
    """[.., bytes] -> scales -32..31 [.., 16]: four low bits in 8 bytes, two high bits in 4."""
    low = blocks[..., 96:104]
    high = blocks[..., None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    joined = np.concatenate((low & 15, low >> 4), axis=-1) | ((high & 3) << 4).reshape(*low.shape[:-1], 16)
    return joined.view(np.int8) - np.int8(32)


def _dequantize(blocks: Bytes) -> Floats:
    scales = half(blocks, 108) * _scales(blocks).astype(np.float32)
    codes = _codes(blocks).astype(np.float32) - 4
    return (scales[..., None] * codes.reshape(-1, 16, 16)).reshape(-1, 256)


def _split(blocks: Bytes) -> RowMajor:
    rows = blocks.shape[0]
    words = join_codes(Code.CODE4, _codes(blocks).reshape(rows, -1))
    return RowMajor(words, _scales(blocks).reshape(rows, -1), half_bits(blocks, 108))


Q3_K = Format(
    name="Q3_K",
    gguf_type=11,
    block_weights=256,
    block_bytes=110,
    storage=Storage(Code.CODE4, 16, ScaleKind.SUPER, table=(*range(-4, 4), *[0] * 8)),
    dequantize_blocks=_dequantize,
    split_blocks=_split,
    half_scales=(108,),
)
