"""MXFP4 and NVFP4: 4-bit floats (sign, two exponent bits, one bit of fraction) under shared scales. Their bytes only.

MXFP4: 32 weights share a power of two (e8m0). NVFP4: four times 16 weights, each with an unsigned e4m3 scale, and a
float32 beside the tensor that multiplies it all. The table holds twice a 4-bit float's value, so the scale counts half.
"""

import numpy as np
from numpy.typing import NDArray

from strata.quant.float_codes import widen
from strata.quant.formats.base import Bytes, Floats, Format, Storage, nibbles, words_of_nibbles
from strata.quant.formats.fitting import fit_levels
from strata.quant.layout import Code, ScaleKind
from strata.quant.packed import join_codes
from strata.quant.rows import RowMajor

DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_TABLE = np.array(DOUBLED, np.float32)
_LEVELS = tuple(sorted(set(DOUBLED)))  # rising, one zero
_CODE_OF_LEVEL = np.array([DOUBLED.index(level) for level in _LEVELS], np.uint8)
_LAST_E8M0 = 254  # 255 stands for no number
_OVERFLOWS_E8M0 = 252  # 12 * 2^(252 - 127) is no float32


def e8m0_halves(exponents: Bytes) -> Floats:
    """2^(e - 127) / 2, exactly; the two smallest are denormal."""
    wide = exponents.astype(np.uint32)
    bits = np.where(wide < 2, np.uint32(1 << 21) << wide, (np.maximum(wide, 1) - 1) << 23)
    return bits.astype(np.uint32).view(np.float32)


def _dequantize_mx(blocks: Bytes) -> Floats:
    with np.errstate(over="ignore"):  # the largest scales make infinite weights
        return e8m0_halves(blocks[:, :1]) * _TABLE[nibbles(blocks[:, 1:])]


def _used_exponents(blocks: Bytes) -> Bytes:
    """The exponents, with 1 where all weights of a block are zero: the exponent says nothing there."""
    is_zero = ((blocks[..., 1:] & 0x77) == 0).all(axis=-1)
    return np.where(is_zero, np.uint8(1), blocks[..., 0])


def _storage_mx(blocks: Bytes) -> Storage:
    """Halving e = 0 would need e = -1: then the whole matrix is halved instead, and if that could overflow where the
    published values do not, its scales become float32."""
    exponents = _used_exponents(blocks)
    if exponents.min() > 0:
        return MXFP4.storage
    if exponents.max() < _OVERFLOWS_E8M0:
        return Storage(Code.CODE4, 32, ScaleKind.E8M0, table=DOUBLED, post_scale=0.5)
    return Storage(Code.CODE4, 32, ScaleKind.F32, table=DOUBLED)


def _split_mx(blocks: Bytes) -> RowMajor:
    exponents, storage = _used_exponents(blocks), _storage_mx(blocks)
    words = words_of_nibbles(blocks, 1)
    if storage.scale_kind is ScaleKind.F32:
        return RowMajor(words, e8m0_halves(exponents))
    return RowMajor(words, exponents if storage.post_scale == 0.5 else exponents - np.uint8(1))


def _check_mx(blocks: Bytes) -> None:
    if (blocks[..., 0] > _LAST_E8M0).any():
        raise ValueError("a scale is not a number")


def _quantize_mx(values: Floats) -> Bytes:
    peak = np.abs(values).max(axis=1, keepdims=True)
    _, power = np.frexp(peak)  # peak = fraction * 2^power, fraction in [0.5, 1)
    # The peak becomes 4 to 8 times the scale (cut at 6), or 2 to 4 times a scale twice as large.
    tried = [np.ldexp(np.float32(0.5), (power - 3 + step).clip(-126, 127)) for step in (0, 1)]
    halves, codes = fit_levels(values, _LEVELS, tried, _power_of_two)
    _, stored = np.frexp(halves)  # half a scale 2^(e - 127) is 0.5 * 2^(e - 127)
    exponents = (stored + 127).clip(0, _LAST_E8M0).astype(np.uint8)
    four_bits = _CODE_OF_LEVEL[codes]
    return np.concatenate((exponents, four_bits[:, :16] | (four_bits[:, 16:] << 4)), axis=1)


def _power_of_two(scale: Floats) -> Floats:
    """The nearest power of two, by its logarithm, that e8m0 holds when doubled."""
    fraction, power = np.frexp(np.abs(scale))
    return np.ldexp(np.float32(0.5), (power + (fraction > np.sqrt(0.5))).clip(-126, 127)).astype(np.float32)


def _ue4m3(scales: Bytes) -> Bytes:
    """Scales as fp8 without a sign: 0x7F counts as zero, as GGUF has it."""
    return np.where(scales == 0x7F, np.uint8(0), scales & 0x7F)


def _codes_nv(blocks: Bytes) -> Bytes:
    """[.., 36] -> [.., 4, 16]: of 8 bytes all low halves, then all high halves."""
    return nibbles(blocks[..., 4:].reshape(*blocks.shape[:-1], 4, 8))


def _dequantize_nv(blocks: Bytes) -> Floats:
    scales = widen(_ue4m3(blocks[:, :4]), Code.FP8) * np.float32(0.5)
    return (scales[..., None] * _TABLE[_codes_nv(blocks)]).reshape(-1, 64)


def _split_nv(blocks: Bytes) -> RowMajor:
    rows = blocks.shape[0]
    words = join_codes(Code.CODE4, _codes_nv(blocks).reshape(rows, -1))
    return RowMajor(words, _ue4m3(blocks[..., :4]).reshape(rows, -1))


def _check_nv(blocks: Bytes) -> None:
    if (blocks[..., :4] == 0xFF).any():
        raise ValueError("a scale is not a number")


def _nearest_ue4m3(scale: Floats) -> NDArray[np.uint8]:
    """The number of the nearest non-negative fp8 value up to 448."""
    values = widen(np.arange(0x7F, dtype=np.uint8), Code.FP8)
    return np.searchsorted((values[1:] + values[:-1]) / 2, scale).astype(np.uint8)


def _quantize_nv(values: Floats) -> Bytes:
    groups = values.reshape(-1, 16)
    peak = np.abs(groups).max(axis=1, keepdims=True)
    tried = (peak / np.float32(end) for end in (12, 10.8, 13.3, 8, 9.3))

    def store(half_scale: Floats) -> Floats:
        return widen(_nearest_ue4m3(half_scale * 2), Code.FP8) / np.float32(2)

    halves, codes = fit_levels(groups, _LEVELS, tried, store)
    four_bits = _CODE_OF_LEVEL[codes].reshape(-1, 4, 16)
    packed = four_bits[:, :, :8] | (four_bits[:, :, 8:] << 4)
    return np.concatenate((_nearest_ue4m3(halves * 2).reshape(-1, 4), packed.reshape(-1, 32)), axis=1)


MXFP4 = Format(
    name="MXFP4",
    gguf_type=39,
    block_weights=32,
    block_bytes=17,
    storage=Storage(Code.CODE4, 32, ScaleKind.E8M0, table=DOUBLED),
    dequantize_blocks=_dequantize_mx,
    split_blocks=_split_mx,
    quantize_blocks=_quantize_mx,
    check_blocks=_check_mx,
    storage_of=_storage_mx,
)
NVFP4 = Format(
    name="NVFP4",
    gguf_type=40,
    block_weights=64,
    block_bytes=36,
    storage=Storage(Code.CODE4, 16, ScaleKind.UE4M3, table=DOUBLED, post_scale=0.5),
    dequantize_blocks=_dequantize_nv,
    split_blocks=_split_nv,
    quantize_blocks=_quantize_nv,
    check_blocks=_check_nv,
)
