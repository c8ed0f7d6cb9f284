"""Float codes: how the bits of f32, bf16, f16 and fp8 become float32. Knows no matrix and no block."""

import numpy as np
import torch
from numpy.typing import NDArray

from strata.quant.layout import Code

# The type in which NumPy carries the bits; it knows neither bf16 nor fp8.
CARRIERS: dict[Code, type] = {Code.F32: np.float32, Code.BF16: np.uint16, Code.F16: np.float16, Code.FP8: np.uint8}


def widen(values: NDArray[np.generic], code: Code) -> NDArray[np.float32]:
    """Values as their code carries them -> float32, exactly."""
    if code is Code.BF16:
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if code is Code.FP8:
        fp8 = torch.from_numpy(np.ascontiguousarray(values.view(np.uint8))).view(torch.float8_e4m3fn)
        return fp8.float().numpy()
    return values.astype(np.float32)


def round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Finite float32 -> the bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
