"""Q8_0: 32 weights share an f16 scale d; value = d * int8. Knows its bytes only."""

import numpy as np

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits
from strata.quant.layout import Code, ScaleKind
from strata.quant.rows import RowMajor


def _dequantize(blocks: Bytes) -> Floats:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _split(blocks: Bytes) -> RowMajor:
    return RowMajor(np.ascontiguousarray(blocks[..., 2:]).view(np.uint32), half_bits(blocks, 0))


def _quantize(values: Floats) -> Bytes:
    exact = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scale = np.minimum(exact, 65504).astype(np.float16)
    rounded = scale.astype(np.float32)  # codes for the scale that is stored, not for the one that was wished
    codes = np.rint(np.divide(values, rounded, out=np.zeros_like(values), where=rounded > 0)).clip(-127, 127)
    return np.concatenate((scale.view(np.uint8), codes.astype(np.int8).view(np.uint8)), axis=1)


Q8_0 = Format(
    name="Q8_0",
    gguf_type=8,
    block_weights=32,
    block_bytes=34,
    storage=Storage(Code.CODE8, 32, ScaleKind.F16),
    dequantize_blocks=_dequantize,
    split_blocks=_split,
    quantize_blocks=_quantize,
    half_scales=(0,),
)
