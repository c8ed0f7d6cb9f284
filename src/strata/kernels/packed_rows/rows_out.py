"""Rows as one kernel leaves them for the next: quantized in blocks of 32, as they are, or both. Knows no kernel."""

from dataclasses import dataclass

import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.quant.layout import BLOCK_COLUMNS


@dataclass(frozen=True)
class Activations:
    """What the matrix kernels read of rows: quantized, or float32 as they are (for float codes).

    Block b of row r is number r * row_step + b * block_step. values: four int64 a block; number w holds q of word w of
    the low 16 columns (columns 4w .. 4w + 3) in its low half and of the high 16 in its high half. records: one int64 a
    block: d as float32 in its low half; in its high half two int16, the sums of q over the low and the high 16 columns.
    For float codes values are float32 [rows, columns], and there are no records.
    """

    values: torch.Tensor
    records: torch.Tensor
    row_step: int = 0
    block_step: int = 0

    @classmethod
    def empty(cls, rows: int, blocks: int, device: torch.device, launch: LaunchShape) -> "Activations":
        """Room for `rows` quantized rows. Rows that the matrix units read together lie side by side."""
        q = torch.empty(rows * blocks, BLOCK_COLUMNS // 8, dtype=torch.int64, device=device)
        records = torch.empty(rows * blocks, dtype=torch.int64, device=device)
        steps = (1, rows) if launch.uses_matrix_units else (blocks, 1)
        return cls(q, records, *steps)

    @property
    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        """In the kernels' order."""
        return self.values, self.records, self.row_step, self.block_step


@dataclass(frozen=True)
class RowsOut:
    """Where a kernel writes the rows that matrices read next: as they are, quantized, or both."""

    plain: torch.Tensor | None  # float32 [rows, columns]
    quantized: Activations | None
