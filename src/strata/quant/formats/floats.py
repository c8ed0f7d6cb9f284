"""F32, F16 and BF16: weights without scales, kept as they are. Knows their bytes only."""

import numpy as np

from strata.quant.float_codes import round_to_bf16, widen
from strata.quant.formats.base import Bytes, Floats, Format, Storage
from strata.quant.layout import Code
from strata.quant.rows import RowMajor


def _values(blocks: Bytes, carrier: type) -> np.ndarray:
    return np.ascontiguousarray(blocks).view(carrier).reshape(blocks.shape[0], -1)


def _refuse_not_finite(blocks: Bytes, carrier: type, code: Code) -> None:
    # In pieces: a table of embeddings would otherwise be copied whole.
    for start in range(0, blocks.shape[0], 256):
        if not np.isfinite(widen(_values(blocks[start : start + 256], carrier), code)).all():
            raise ValueError("a weight is not finite")


def _float_format(name: str, gguf_type: int, code: Code, carrier: type) -> Format:
    width = np.dtype(carrier).itemsize

    def quantize(values: Floats) -> Bytes:
        if code is Code.BF16:
            return round_to_bf16(values).view(np.uint8)
        held = values.clip(-65504, 65504) if code is Code.F16 else values
        return np.ascontiguousarray(held, carrier).view(np.uint8)

    return Format(
        name=name,
        gguf_type=gguf_type,
        block_weights=1,
        block_bytes=width,
        storage=Storage(code),
        dequantize_blocks=lambda blocks: widen(_values(blocks, carrier), code),
        split_blocks=lambda blocks: RowMajor(_values(blocks, carrier)),
        quantize_blocks=quantize,
        check_blocks=lambda blocks: _refuse_not_finite(blocks, carrier, code),
    )


F32 = _float_format("F32", 0, Code.F32, np.float32)
F16 = _float_format("F16", 1, Code.F16, np.float16)
BF16 = _float_format("BF16", 30, Code.BF16, np.uint16)
