"""Block FP8 of safetensors: float8_e4m3fn weights, a float32 scale for each block of rows x columns. No GGUF type.

value = weight * scale, rounded once: not exact in bf16, so the weights stay beside their scales. Knows no file.
"""

import numpy as np
import torch

from strata.errors import WeightFileError
from strata.quant.layout import Code, MatrixLayout, ScaleKind
from strata.quant.packed import PackedMatrix, pack
from strata.quant.rows import RowMajor


def fp8_layout(rows: int, columns: int, block_columns: int) -> MatrixLayout:
    """What `pack_fp8_blocks` makes of a matrix of this size."""
    return MatrixLayout(rows, columns, Code.FP8, block_columns, ScaleKind.F32)


def pack_fp8_blocks(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> PackedMatrix:
    """weight [rows, columns] float8_e4m3fn, scale [row blocks, column blocks] -> the same values, packed.

    Raises WeightFileError for values that are not finite and for scales of another shape.
    """
    rows, columns = weight.shape
    wanted = (-(-rows // block[0]), -(-columns // block[1]))
    if tuple(scale.shape) != wanted:
        raise WeightFileError(f"FP8 scales have the shape {list(scale.shape)}, the weight means {list(wanted)}")
    bits = weight.contiguous().view(torch.uint8).numpy()
    wide = scale.float().numpy()
    if not np.isfinite(wide).all() or ((bits & 0x7F) == 0x7F).any():
        raise WeightFileError("an FP8 weight or scale is not finite")
    row_scales = np.repeat(wide, block[0], axis=0)[:rows]
    return pack(fp8_layout(rows, columns, block[1]), RowMajor(bits, row_scales))
