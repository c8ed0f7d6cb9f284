"""Q6_K: 256 weights of 6 bits; 16 share an int8 scale of an f16 d. Knows its bytes only.

value = d * scale * (code - 32): four bits of a code lie in halves of bytes, two in pairs of bits.
"""

import numpy as np
from numpy.typing import NDArray

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits
from strata.quant.formats.fitting import as_half, divide, fit_signed, signed_codes, to_half
from strata.quant.layout import Code, ScaleKind
from strata.quant.packed import join_codes
from strata.quant.rows import RowMajor

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _integers(blocks: Bytes) -> NDArray[np.int8]:
    """[.., bytes] -> -32..31 [.., 256]: of 128 weights, 64 bytes hold the low four bits, 32 bytes the high two."""
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 1, 64)
    low = np.concatenate((low & 15, low >> 4), axis=-2)  # [.., 2, 2, 64]
    high = (blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32) >> _SHIFTS) & 3  # [.., 2, 4, 32]
    codes = low.reshape(high.shape) | (high << 4)
    return codes.reshape(*blocks.shape[:-1], 256).view(np.int8) - np.int8(32)


def _dequantize(blocks: Bytes) -> Floats:
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    grouped = _integers(blocks).astype(np.float32).reshape(-1, 16, 16)
    return (scales[..., None] * grouped).reshape(-1, 256)


def _split(blocks: Bytes) -> RowMajor:
    rows = blocks.shape[0]
    scales = np.ascontiguousarray(blocks[..., 192:208]).reshape(rows, -1).view(np.int8)
    return RowMajor(join_codes(Code.CODE8, _integers(blocks).reshape(rows, -1)), scales, half_bits(blocks, 208))


def _quantize(values: Floats) -> Bytes:
    groups = values.reshape(-1, 16)
    wished, _ = fit_signed(groups, -32, 31, store=lambda scale: scale)
    wished = wished.reshape(-1, 16)
    d = as_half(np.abs(wished).max(axis=1, keepdims=True) / np.float32(127))
    scales = np.rint(divide(wished, d)).clip(-127, 127)
    integers = signed_codes(groups, (d * scales).reshape(-1, 1), -32, 31)
    codes = (integers + np.int8(32)).view(np.uint8).reshape(-1, 2, 4, 32)
    low = (codes & 15).reshape(-1, 2, 2, 64)
    high = ((codes >> 4) << _SHIFTS).sum(axis=2, dtype=np.uint8)
    parts = ((low[:, :, 0] | (low[:, :, 1] << 4)).reshape(-1, 128), high.reshape(-1, 64))
    return np.concatenate((*parts, scales.astype(np.int8).view(np.uint8), to_half(d).view(np.uint8)), axis=1)


Q6_K = Format(
    name="Q6_K",
    gguf_type=14,
    block_weights=256,
    block_bytes=210,
    storage=Storage(Code.CODE8, 16, ScaleKind.SUPER),
    dequantize_blocks=_dequantize,
    split_blocks=_split,
    quantize_blocks=_quantize,
    half_scales=(208,),
)
