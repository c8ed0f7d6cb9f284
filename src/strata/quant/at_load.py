"""Quantizing at load, for people who have bf16 or FP8 files: which format stands for code4 and code8. Knows no file.

code4 is written as IQ4_NL and code8 as Q8_0: of the formats at 4.5 and 8.5 bits they have the least error.
"""

import numpy as np
import torch

from strata.quant.formats.base import Format
from strata.quant.formats.floats import BF16, F32
from strata.quant.formats.iq4 import IQ4_NL
from strata.quant.formats.q8_0 import Q8_0
from strata.quant.layout import MatrixLayout
from strata.quant.packed import PackedMatrix

CHOICES: dict[str, Format] = {"code4": IQ4_NL, "code8": Q8_0}
_CHUNK_WEIGHTS = 1 << 18  # quantized at a time: what stays in a core's cache


def format_for(choice: str, columns: int, is_bf16: bool) -> Format:
    """What a matrix becomes: the choice's format, or a float code if its blocks do not divide the columns."""
    wanted = CHOICES[choice]
    if columns % wanted.block_weights == 0:
        return wanted
    return BF16 if is_bf16 else F32


def quantized_layout(choice: str, rows: int, columns: int, is_bf16: bool = True) -> MatrixLayout:
    """What `quantize_matrix` makes of a matrix of this size."""
    return format_for(choice, columns, is_bf16).layout(rows, columns)


def quantize_matrix(values: torch.Tensor, choice: str) -> PackedMatrix:
    """values [rows, columns], finite, of any float type -> packed as `choice` (code4, code8) says."""
    rows, columns = values.shape
    chosen = format_for(choice, columns, values.dtype == torch.bfloat16)
    step = max(1, _CHUNK_WEIGHTS // columns)
    parts = [chosen.quantize(values[first : first + step]) for first in range(0, rows, step)]
    return chosen.to_packed(np.concatenate(parts), rows, columns)
