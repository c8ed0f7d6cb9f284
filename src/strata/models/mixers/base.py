"""The contract of everything in a layer that keeps state: read a tile, compute a window, commit accepted rows.

Knows no mixer and no family.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from strata.models.blocks.rotary import Rotation


@dataclass(frozen=True)
class RowsInfo:
    """What is known of the rows of a call beside their values; in a read they are one tile of one slot."""

    token_ids: torch.Tensor  # [rows] int64
    positions: torch.Tensor  # [rows] int64, absolute
    rotation: Rotation
    bounds: tuple[tuple[int, int], ...]  # per slot: its rows start..stop in this call

    def tile(self, start: int, stop: int) -> "RowsInfo":
        """The rows start..stop, as one slot's tile."""
        rows = slice(start, stop)
        return RowsInfo(self.token_ids[rows], self.positions[rows], self.rotation.rows(rows), ((0, stop - start),))


class StatefulPart(Protocol):
    """A mixer or a whole layer: rows in, rows out, state beside them. x [rows, width] -> [rows, out width]."""

    def new_state(self) -> Any:
        """The state at the start of a text."""
        ...

    def read(self, x: torch.Tensor, rows: RowsInfo, state: Any) -> torch.Tensor:
        """One tile of one slot; advances the slot's state."""
        ...

    def window(self, x: torch.Tensor, rows: RowsInfo, states: Sequence[Any]) -> tuple[torch.Tensor, Any]:
        """Rows of several slots, each as if decoded one by one; no committed state changes.

        The second value is what `commit` needs.
        """
        ...

    def commit(self, pending: Any, slot: int, state: Any, accepted_rows: int) -> None:
        """Make the first `accepted_rows` rows (at least 1) of a window's slot part of its state."""
        ...
