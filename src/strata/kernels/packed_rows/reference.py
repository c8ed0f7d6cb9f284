"""Packed matrices times rows as they are defined: the definition is that of the expert's rows, on any device."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from strata.kernels.expert_rows.reference import matrix_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.packed import PackedMatrix

_ARRAYS = ("codes", "scales", "super_scales", "mins", "super_mins")


def packed_rows(matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    """x float32 [rows, columns] -> float32 [rows, outputs] on the device of x; computed on the CPU."""
    return matrix_rows(in_host_memory(matrix), x.cpu()).to(x.device)


def multiply_into(matrices: Sequence[PackedMatrix], x: RowsOut, out: torch.Tensor) -> None:
    """See `strata.kernels.packed_rows.multiply_into`."""
    assert x.plain is not None  # checked by the caller
    out.copy_(torch.cat([packed_rows(matrix, x.plain) for matrix in matrices], dim=1))


def in_host_memory(matrix: PackedMatrix) -> PackedMatrix:
    """The matrix itself, or a copy of one that lies on a device."""
    if matrix.codes.device.type == "cpu":
        return matrix
    return replace(matrix, **{name: getattr(matrix, name).cpu() for name in _ARRAYS})
