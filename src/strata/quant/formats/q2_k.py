"""Q2_K: 256 weights of 2 bits; 16 share a 4-bit scale and a 4-bit minimum of f16 d and dmin. Knows its bytes only.

value = d * scale * code - dmin * minimum.
"""

import numpy as np

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits
from strata.quant.layout import Code, MinKind, ScaleKind
from strata.quant.packed import join_codes
from strata.quant.rows import RowMajor

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def two_bit_codes(packed: Bytes) -> Bytes:
    """[.., 64] bytes -> codes [.., 256]: 32 bytes hold 128 weights, 32 at each pair of bits."""
    parts = packed.reshape(*packed.shape[:-1], 2, 1, 32) >> _SHIFTS
    return (parts & np.uint8(3)).reshape(*packed.shape[:-1], 256)


def _dequantize(blocks: Bytes) -> Floats:
    small = blocks[:, :16]
    scales = half(blocks, 80) * (small & 15).astype(np.float32)
    minimums = half(blocks, 82) * (small >> 4).astype(np.float32)
    codes = two_bit_codes(blocks[:, 16:80]).astype(np.float32).reshape(-1, 16, 16)
    return (scales[..., None] * codes - minimums[..., None]).reshape(-1, 256)


def _split(blocks: Bytes) -> RowMajor:
    rows = blocks.shape[0]
    small = blocks[..., :16].reshape(rows, -1)
    words = join_codes(Code.CODE2, two_bit_codes(blocks[..., 16:80]).reshape(rows, -1))
    return RowMajor(words, (small & 15).view(np.int8), half_bits(blocks, 80), small >> 4, half_bits(blocks, 82))


Q2_K = Format(
    name="Q2_K",
    gguf_type=10,
    block_weights=256,
    block_bytes=84,
    storage=Storage(Code.CODE2, 16, ScaleKind.SUPER, MinKind.SUPER, (0, 1, 2, 3)),
    dequantize_blocks=_dequantize,
    split_blocks=_split,
    half_scales=(80, 82),
)
