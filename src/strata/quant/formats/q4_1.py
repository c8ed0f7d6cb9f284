"""Q4_1: 32 weights share f16 d and m; value = d * code + m. Knows its bytes only."""

import numpy as np

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits, nibbles, words_of_nibbles
from strata.quant.formats.fitting import fit_affine_codes, join_nibbles, to_half
from strata.quant.layout import Code, MinKind, ScaleKind
from strata.quant.rows import RowMajor

SIGN_OF_HALF = np.uint16(0x8000)  # the code subtracts what the format adds


def _dequantize(blocks: Bytes) -> Floats:
    return half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def _split(blocks: Bytes) -> RowMajor:
    return RowMajor(words_of_nibbles(blocks, 4), half_bits(blocks, 0), mins=half_bits(blocks, 2) ^ SIGN_OF_HALF)


def _quantize(values: Floats) -> Bytes:
    scale, low, codes = fit_affine_codes(values, 15)
    halves = [to_half(each).view(np.uint8) for each in (scale, low)]
    return np.concatenate((*halves, join_nibbles(codes)), axis=1)


Q4_1 = Format(
    name="Q4_1",
    gguf_type=3,
    block_weights=32,
    block_bytes=20,
    storage=Storage(Code.CODE4, 32, ScaleKind.F16, MinKind.F16, tuple(range(16))),
    dequantize_blocks=_dequantize,
    split_blocks=_split,
    quantize_blocks=_quantize,
    half_scales=(0, 2),
)
