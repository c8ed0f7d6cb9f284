"""Plain causal attention with its state: key and value cells. Knows no family."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.models.blocks import attention
from strata.models.mixers.base import RowsInfo
from strata.models.mixers.cells import attend, new_cells
from strata.state.kv import GrowingCells


@dataclass
class AttentionState:
    """Cells of one slot."""

    keys: GrowingCells  # [cells, kv_heads, head_dim]
    values: GrowingCells

    def bytes_used(self) -> int:
        return self.keys.bytes_used() + self.values.bytes_used()

    def clone(self) -> "AttentionState":
        return AttentionState(self.keys.clone(), self.values.clone())


class AttentionMixer:
    """See `StatefulPart`."""

    def __init__(self, weights: attention.AttentionWeights, shape: attention.AttentionShape) -> None:
        self.weights = weights
        self.shape = shape

    def new_state(self) -> AttentionState:
        return AttentionState(*new_cells(self.shape, self.weights.out.dtype))

    def read(self, x: torch.Tensor, rows: RowsInfo, state: AttentionState) -> torch.Tensor:
        projected = attention.project_rows(x, self.weights, self.shape, rows.rotation)
        state.keys.append(projected.key)
        state.values.append(projected.value)
        attended = _attend(projected.query, state, rows.positions, state.keys.count)
        return attention.finish_rows(attended, projected.gate, self.weights)

    def window(
        self, x: torch.Tensor, rows: RowsInfo, states: Sequence[AttentionState]
    ) -> tuple[torch.Tensor, tuple[attention.ProjectedRows, Sequence[tuple[int, int]]]]:
        projected = attention.project_rows(x, self.weights, self.shape, rows.rotation)
        parts = []
        for state, (start, stop) in zip(states, rows.bounds, strict=True):
            # The cells after the committed ones are free: what is written there becomes state only by a commit.
            first, seen = state.keys.count, slice(start, stop)
            state.keys.write(first, projected.key[seen])
            state.values.write(first, projected.value[seen])
            parts.append(_attend(projected.query[seen], state, rows.positions[seen], first + stop - start))
        return attention.finish_rows(torch.cat(parts), projected.gate, self.weights), (projected, rows.bounds)

    def commit(
        self,
        pending: tuple[attention.ProjectedRows, Sequence[tuple[int, int]]],
        slot: int,
        state: AttentionState,
        accepted_rows: int,
    ) -> None:
        projected, bounds = pending
        accepted = slice(bounds[slot][0], bounds[slot][0] + accepted_rows)
        state.keys.append(projected.key[accepted])
        state.values.append(projected.value[accepted])


def _attend(query: torch.Tensor, state: AttentionState, positions: torch.Tensor, visible_cells: int) -> torch.Tensor:
    def over(query: torch.Tensor, keys: attention.Heads, values: attention.Heads) -> torch.Tensor:
        return attention.attend_causal(query, keys, values, positions, visible_cells)

    return attend(query, state.keys, state.values, over)
