"""Where the product before the gates writes. Knows no kernel."""

from dataclasses import dataclass

import torch

from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.layout import BLOCK_COLUMNS


@dataclass(frozen=True)
class LowOut:
    """What `gates_down` makes, and room for what its programs leave each other: nobody else reads that."""

    low: RowsOut  # [rows, low_rank] as `up` reads them
    strengths: torch.Tensor | None  # float32 [rows, streams] of the write that follows; None if none follows
    shares: torch.Tensor  # float32 [rows, low_rank (+ streams if there are strengths)]: the product itself
    arrivals: torch.Tensor  # int32 [rows, arrival_columns(width of shares)]; 0 at first and after every launch


def arrival_columns(width: int) -> int:
    """Counters of a row of `width` shares: one for each block of 32."""
    return -(-width // BLOCK_COLUMNS)
