"""silu(gate) * up between the two products of a dense MLP: checks, and the choice of road. Knows no arithmetic."""

from collections.abc import Sequence

import torch

from strata.kernels.packed_rows import check_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.quant.layout import MatrixLayout


def silu_times_into(gate_up: torch.Tensor, readers: Sequence[MatrixLayout], out: RowsOut) -> None:
    """silu(gate) * up of gate_up float32 [rows, 2 * width] (any row stride), as matrices of these layouts read it.

    Raises ValueError if `out` is not room for that.
    """
    if gate_up.dtype != torch.float32 or gate_up.dim() != 2 or gate_up.stride(1) != 1:
        raise ValueError(f"gate_up must be float32 [rows, 2 * width], not {gate_up.dtype} {list(gate_up.shape)}")
    is_reference = takes_reference(gate_up)
    for layout in readers:
        if gate_up.shape[1] != 2 * layout.columns:
            raise ValueError(f"gate_up of {gate_up.shape[1]} columns is no input for {layout.columns} columns")
        check_rows(layout, gate_up.shape[0], out, is_reference)
    if is_reference:
        from strata.kernels.gated_mlp.reference import silu_times_into as by_definition

        by_definition(gate_up, out)
        return
    from strata.kernels.gated_mlp.triton import silu_times_into as by_kernels

    by_kernels(gate_up, out)
