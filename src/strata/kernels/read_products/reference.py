"""Products of a read as they are defined, on any device: weights rounded to bf16, sums that do not round.

Knows packed matrices; knows no expert. Products of bf16 weights and bf16 rows are exact in float64, and their sums as
good as: the order of additions, which torch chooses by the number of rows, is then no longer seen in float32.
"""

from collections.abc import Sequence

import torch

from strata.quant.layout import Code
from strata.quant.packed import PackedMatrix, decode_rows


def read_weights(matrix: PackedMatrix) -> torch.Tensor:
    """The weights that reads multiply by, without the post scale: float64 [outputs, columns] in main memory.

    (scale * integer - minimum) rounded to bf16; values of F16 and F32 codes as they are, which is what the sum of their
    bf16 parts is.
    """
    values = torch.from_numpy(decode_rows(matrix.layout, matrix.to_rows(), 1.0))
    if matrix.layout.code not in (Code.F16, Code.F32):
        values = values.to(torch.bfloat16)
    return values.double()


def multiply(matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    """x bf16 [rows, columns] -> float32 [rows, outputs] on the device of x, times the post scale."""
    sums = (x.cpu().double() @ read_weights(matrix).T).float()
    return (sums if matrix.post_scale == 1.0 else sums * torch.full_like(sums, matrix.post_scale)).to(x.device)


def read_products(matrices: Sequence[PackedMatrix], x: torch.Tensor, out: torch.Tensor) -> None:
    """See `strata.kernels.read_products.read_products`."""
    out.copy_(torch.cat([multiply(matrix, x) for matrix in matrices], dim=1))
