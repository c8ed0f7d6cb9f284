"""Plain linear maps and the gated MLP. Knows no family; weights are [out, in] as published.

A weight is a tensor, or an object that multiplies rows by itself: a matrix that stays packed.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

WINDOW_ROWS = 32  # a decode window has at most this many rows; a read's tile may have more
CACHED_BYTES = 1 << 20  # a part of a weight that stays in a core's cache from one row to the next


class HeldMatrix(Protocol):
    """A matrix that is no tensor."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that it takes and gives."""
        ...

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] -> [rows, out]; a row's bits depend on that row alone."""
        ...


Weight = torch.Tensor | HeldMatrix


def linear(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed: [rows, out].

    A row of a window gets the same bits however many rows share the window: the library's matrix product chooses its
    path by the number of rows, so up to 32 rows are multiplied one by one. A weight is still read from memory once,
    because all rows pass one cached part of it before the next (against products padded to 4 rows, measured on one
    core of a small model: half the time for one row, the same for four).
    """
    if not isinstance(weight, torch.Tensor):
        return weight.times(x)
    if x.shape[0] > WINDOW_ROWS:
        return F.linear(x, weight)
    rows = x.unbind()
    part_rows = max(1, CACHED_BYTES // (weight.shape[1] * weight.element_size()))
    if weight.shape[0] <= part_rows:
        return torch.stack([torch.mv(weight, row) for row in rows])
    parts = weight.split(part_rows)
    return torch.cat([torch.stack([torch.mv(part, row) for row in rows]) for part in parts], dim=1)


@dataclass(frozen=True)
class GatedMlpWeights:
    """A dense MLP: down(silu(gate(x)) * up(x))."""

    gate_up: Weight  # [2 * width, hidden], gate rows first
    down: Weight  # [hidden, width]


def gated_mlp(x: torch.Tensor, weights: GatedMlpWeights) -> torch.Tensor:
    """x [rows, hidden] -> [rows, hidden]."""
    gate, up = linear(x, weights.gate_up).chunk(2, dim=-1)
    return linear(F.silu(gate) * up, weights.down)
