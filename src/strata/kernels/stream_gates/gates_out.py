"""Where the gates over residual streams write. Knows no kernel."""

from dataclasses import dataclass

import torch

from strata.kernels.packed_rows.rows_out import RowsOut


@dataclass(frozen=True)
class GatesOut:
    """Where the gates write. `low` is room for what the kernel hands on inside itself; nobody else reads it."""

    low: RowsOut  # [rows, low_rank]: plain if `up` has a float code or on the torch road, otherwise quantized
    mixed: RowsOut  # [rows, hidden]: the layer's input
    strengths: torch.Tensor | None  # float32 [rows, streams] of the write that follows; None if none follows
