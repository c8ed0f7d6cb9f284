"""silu(gate) * up as it is defined, into given rows. Knows no matrix."""

import torch

from strata.kernels.expert_rows.reference import silu_times
from strata.kernels.packed_rows.rows_out import RowsOut


def silu_times_into(gate_up: torch.Tensor, out: RowsOut) -> None:
    """See `strata.kernels.gated_mlp.silu_times_into`."""
    assert out.plain is not None  # checked by the caller
    gate, up = gate_up.contiguous().chunk(2, dim=1)
    out.plain.copy_(silu_times(gate, up))
