"""Q4_0: 32 weights share an f16 scale d; value = d * (code - 8). Knows its bytes only."""

import numpy as np

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits, nibbles, words_of_nibbles
from strata.quant.formats.fitting import fit_signed, join_nibbles, to_half
from strata.quant.layout import Code, ScaleKind
from strata.quant.rows import RowMajor


def _dequantize(blocks: Bytes) -> Floats:
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _split(blocks: Bytes) -> RowMajor:
    return RowMajor(words_of_nibbles(blocks, 2), half_bits(blocks, 0))


def _quantize(values: Floats) -> Bytes:
    scale, codes = fit_signed(values, -8, 7)
    unsigned = (codes + np.int8(8)).view(np.uint8)
    return np.concatenate((to_half(scale).view(np.uint8), join_nibbles(unsigned)), axis=1)


Q4_0 = Format(
    name="Q4_0",
    gguf_type=2,
    block_weights=32,
    block_bytes=18,
    storage=Storage(Code.CODE4, 32, ScaleKind.F16, table=tuple(range(-8, 8))),
    dequantize_blocks=_dequantize,
    split_blocks=_split,
    quantize_blocks=_quantize,
    half_scales=(0,),
)
