"""Q4_K and Q5_K: 256 weights; 32 share a 6-bit scale and a 6-bit minimum of f16 d and dmin. Knows their bytes only.

value = d * scale * code - dmin * minimum; the fifth bits of Q5_K lie in a mask.
"""

import numpy as np
from numpy.typing import NDArray

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits
from strata.quant.formats.fitting import affine_codes, as_half, divide, fit_affine, to_half
from strata.quant.layout import Code, MinKind, ScaleKind
from strata.quant.packed import join_codes
from strata.quant.rows import RowMajor

_LARGEST = 63  # of a scale or minimum


def _scales_and_minimums(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """[.., bytes] -> two times [.., 8] of 0..63. The first four of each have their 6 bits together, the last four have
    their low four in the third group of bytes and their high two above the first four's."""
    first, second, third = (blocks[..., start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=-1)
    minimums = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=-1)
    return scales, minimums


def _join_scales(scales: Bytes, minimums: Bytes) -> Bytes:
    """The inverse: two times [n, 8] -> [n, 12] bytes."""
    first = scales[:, :4] | ((scales[:, 4:] >> 4) << 6)
    second = minimums[:, :4] | ((minimums[:, 4:] >> 4) << 6)
    return np.concatenate((first, second, (scales[:, 4:] & 15) | ((minimums[:, 4:] & 15) << 4)), axis=1)


def _nibble_codes(packed: Bytes) -> Bytes:
    """[.., 128] bytes -> [.., 256]: 32 bytes hold 64 weights, 32 in the low and 32 in the high halves."""
    parts = packed.reshape(*packed.shape[:-1], 4, 32)
    return np.stack((parts & np.uint8(15), parts >> np.uint8(4)), axis=-2).reshape(*packed.shape[:-1], 256)


def _five_bit_codes(blocks: Bytes) -> Bytes:
    bits = np.arange(8, dtype=np.uint8)[:, None]
    fifth = ((blocks[..., None, 16:48] >> bits) & np.uint8(1)).reshape(*blocks.shape[:-1], 256)
    return _nibble_codes(blocks[..., 48:]) | (fifth << np.uint8(4))


def _four_bit_codes(blocks: Bytes) -> Bytes:
    return _nibble_codes(blocks[..., 16:])


def _values(blocks: Bytes, codes: Bytes) -> Floats:
    scales, minimums = (each.astype(np.float32) for each in _scales_and_minimums(blocks))
    scales *= half(blocks, 0)
    minimums *= half(blocks, 2)
    grouped = codes.astype(np.float32).reshape(-1, 8, 32)
    return (scales[..., None] * grouped - minimums[..., None]).reshape(-1, 256)


def _rows(blocks: Bytes, words: NDArray[np.uint32]) -> RowMajor:
    rows = blocks.shape[0]
    scales, minimums = (each.reshape(rows, -1) for each in _scales_and_minimums(blocks))
    return RowMajor(words, scales.view(np.int8), half_bits(blocks, 0), minimums, half_bits(blocks, 2))


def _words_4(blocks: Bytes) -> NDArray[np.uint32]:
    """code4's words without opening the nibbles: of 32 bytes the low halves are one block, the high halves the next;
    a word wants elements k and 16 + k of one block in one byte."""
    halves = np.ascontiguousarray(blocks[..., 16:]).view(np.uint32).reshape(blocks.shape[0], -1, 2, 4)
    first, second, low = halves[:, :, 0], halves[:, :, 1], np.uint32(0x0F0F0F0F)
    words = np.empty_like(halves)
    words[:, :, 0] = (first & low) | ((second & low) << np.uint32(4))
    words[:, :, 1] = ((first >> np.uint32(4)) & low) | (second & ~low)
    return words.reshape(blocks.shape[0], -1, 4)


def _words_5(blocks: Bytes) -> NDArray[np.uint32]:
    return join_codes(Code.CODE8, _five_bit_codes(blocks).reshape(blocks.shape[0], -1).view(np.int8))


def _quantize(values: Floats, high: int) -> tuple[Bytes, Bytes]:
    """values [n, 256] -> (the 16 bytes of scales [n, 16], codes [n, 256])."""
    groups = values.reshape(-1, 32)
    scale, low = (each.reshape(-1, 8) for each in fit_affine(groups, high, low_at_most=0.0))
    minimum = -low
    d, dmin = (as_half(each.max(axis=1, keepdims=True) / np.float32(_LARGEST)) for each in (scale, minimum))
    scales = np.rint(divide(scale, d)).clip(0, _LARGEST)
    minimums = np.rint(divide(minimum, dmin)).clip(0, _LARGEST)
    codes = affine_codes(groups, (d * scales).reshape(-1, 1), -(dmin * minimums).reshape(-1, 1), high)
    heads = [to_half(each).view(np.uint8) for each in (d, dmin)]
    packed = _join_scales(scales.astype(np.uint8), minimums.astype(np.uint8))
    return np.concatenate((*heads, packed), axis=1), codes.reshape(-1, 256)


def _join_nibbles(codes: Bytes) -> Bytes:
    parts = (codes & np.uint8(15)).reshape(-1, 4, 2, 32)
    return (parts[:, :, 0] | (parts[:, :, 1] << np.uint8(4))).reshape(-1, 128)


def _quantize_4(values: Floats) -> Bytes:
    head, codes = _quantize(values, 15)
    return np.concatenate((head, _join_nibbles(codes)), axis=1)


def _quantize_5(values: Floats) -> Bytes:
    head, codes = _quantize(values, 31)
    fifth = (codes >> 4).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    return np.concatenate((head, fifth.sum(axis=1, dtype=np.uint8), _join_nibbles(codes)), axis=1)


Q4_K = Format(
    name="Q4_K",
    gguf_type=12,
    block_weights=256,
    block_bytes=144,
    storage=Storage(Code.CODE4, 32, ScaleKind.SUPER, MinKind.SUPER, tuple(range(16))),
    dequantize_blocks=lambda blocks: _values(blocks, _four_bit_codes(blocks)),
    split_blocks=lambda blocks: _rows(blocks, _words_4(blocks)),
    quantize_blocks=_quantize_4,
    half_scales=(0, 2),
)
Q5_K = Format(
    name="Q5_K",
    gguf_type=13,
    block_weights=256,
    block_bytes=176,
    storage=Storage(Code.CODE8, 32, ScaleKind.SUPER, MinKind.SUPER),
    dequantize_blocks=lambda blocks: _values(blocks, _five_bit_codes(blocks)),
    split_blocks=lambda blocks: _rows(blocks, _words_5(blocks)),
    quantize_blocks=_quantize_5,
    half_scales=(0, 2),
)
