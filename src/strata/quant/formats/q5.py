"""Q5_0 and Q5_1: 32 weights of 5 bits, the fifth bits of all in a word of their own. Knows their bytes only.

Q5_0: value = d * (code - 16). Q5_1: value = d * code + m. d and m are f16.
"""

import numpy as np
from numpy.typing import NDArray

from strata.quant.formats.base import Bytes, Floats, Format, Storage, half, half_bits, nibbles
from strata.quant.formats.fitting import fit_affine_codes, fit_signed, join_nibbles, to_half
from strata.quant.formats.q4_1 import SIGN_OF_HALF
from strata.quant.layout import Code, MinKind, ScaleKind
from strata.quant.packed import join_codes
from strata.quant.rows import RowMajor


def _codes(blocks: Bytes, offset: int) -> Bytes:
    """[.., bytes] -> codes 0..31 [.., 32]; the fifth bits begin at `offset`."""
    fifth = np.unpackbits(blocks[..., offset : offset + 4], axis=-1, bitorder="little")
    return nibbles(blocks[..., offset + 4 :]) | (fifth << np.uint8(4))


def _join(codes: Bytes) -> Bytes:
    """codes [n, 32] -> the fifth bits and the nibbles, [n, 20] bytes."""
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little")
    low = codes & np.uint8(15)
    return np.concatenate((fifth, join_nibbles(low)), axis=1)


def _words(codes: NDArray[np.int8]) -> NDArray[np.uint32]:
    return join_codes(Code.CODE8, codes.reshape(codes.shape[0], -1))


def _dequantize_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * (_codes(blocks, 2).astype(np.float32) - 16)


def _split_0(blocks: Bytes) -> RowMajor:
    return RowMajor(_words(_codes(blocks, 2).view(np.int8) - np.int8(16)), half_bits(blocks, 0))


def _quantize_0(values: Floats) -> Bytes:
    scale, codes = fit_signed(values, -16, 15)
    return np.concatenate((to_half(scale).view(np.uint8), _join((codes + np.int8(16)).view(np.uint8))), axis=1)


def _dequantize_1(blocks: Bytes) -> Floats:
    return half(blocks, 0) * _codes(blocks, 4).astype(np.float32) + half(blocks, 2)


def _split_1(blocks: Bytes) -> RowMajor:
    words = _words(_codes(blocks, 4).view(np.int8))
    return RowMajor(words, half_bits(blocks, 0), mins=half_bits(blocks, 2) ^ SIGN_OF_HALF)


def _quantize_1(values: Floats) -> Bytes:
    scale, low, codes = fit_affine_codes(values, 31)
    return np.concatenate((*(to_half(each).view(np.uint8) for each in (scale, low)), _join(codes)), axis=1)


Q5_0 = Format(
    name="Q5_0",
    gguf_type=6,
    block_weights=32,
    block_bytes=22,
    storage=Storage(Code.CODE8, 32, ScaleKind.F16),
    dequantize_blocks=_dequantize_0,
    split_blocks=_split_0,
    quantize_blocks=_quantize_0,
    half_scales=(0,),
)
Q5_1 = Format(
    name="Q5_1",
    gguf_type=7,
    block_weights=32,
    block_bytes=24,
    storage=Storage(Code.CODE8, 32, ScaleKind.F16, MinKind.F16),
    dequantize_blocks=_dequantize_1,
    split_blocks=_split_1,
    quantize_blocks=_quantize_1,
    half_scales=(0, 2),
)
