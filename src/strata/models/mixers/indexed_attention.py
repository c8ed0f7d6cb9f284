"""Indexed attention with its state: key and value cells, raw indexer keys, pooled keys of complete blocks.

Knows no family. Rows that still see every block take plain causal attention; the others gather what the indexer picks.
Which of the two depends on a row's position only, never on the rows beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.models.blocks import attention
from strata.models.blocks import indexed_attention as indexed
from strata.models.mixers.base import RowsInfo
from strata.models.mixers.cells import attend, new_cells
from strata.state.kv import GrowingCells, GrowingRows


@dataclass
class IndexedAttentionState:
    """Cells of one slot; `pooled` counts complete blocks of committed cells."""

    keys: GrowingCells  # [cells, kv_heads, head_dim]
    values: GrowingCells
    raw: GrowingRows  # [cells, indexer head_dim]
    pooled: GrowingRows  # [blocks, indexer head_dim]

    def bytes_used(self) -> int:
        return sum(part.bytes_used() for part in (self.keys, self.values, self.raw, self.pooled))

    def clone(self) -> "IndexedAttentionState":
        return IndexedAttentionState(self.keys.clone(), self.values.clone(), self.raw.clone(), self.pooled.clone())

    def truncate(self, rows: int, ratio: int) -> None:
        """Forget the rows from position `rows` on."""
        for part in (self.keys, self.values, self.raw):
            part.truncate(rows)
        self.pooled.truncate(rows // ratio)


@dataclass(frozen=True)
class IndexedRows:
    """A call's rows ready for attention, and to which slot they belong."""

    projected: attention.ProjectedRows
    index_query: torch.Tensor  # [rows, indexer heads, indexer head_dim]
    raw_key: torch.Tensor  # [rows, indexer head_dim]
    bounds: tuple[tuple[int, int], ...]


class IndexedAttentionMixer:
    """See `StatefulPart`."""

    def __init__(
        self,
        weights: attention.AttentionWeights,
        shape: attention.AttentionShape,
        indexer_weights: indexed.IndexerWeights,
        indexer: indexed.IndexerShape,
        frequencies: torch.Tensor,
    ) -> None:
        self.weights = weights
        self.shape = shape
        self.indexer_weights = indexer_weights
        self.indexer = indexer
        self.frequencies = frequencies

    def new_state(self) -> IndexedAttentionState:
        dtype, index_cell = self.weights.out.dtype, (self.indexer.head_dim,)
        raw, pooled = GrowingRows(index_cell, dtype), GrowingRows(index_cell, dtype)
        return IndexedAttentionState(*new_cells(self.shape, dtype), raw, pooled)

    def read(self, x: torch.Tensor, rows: RowsInfo, state: IndexedAttentionState) -> torch.Tensor:
        prepared = self._prepare(x, rows)
        self._write_slot(prepared, 0, state, x.shape[0])
        self._advance(state, x.shape[0])
        attended = self._attend_slot(prepared, rows.positions, 0, state)
        return attention.finish_rows(attended, prepared.projected.gate, self.weights)

    def window(
        self, x: torch.Tensor, rows: RowsInfo, states: Sequence[IndexedAttentionState]
    ) -> tuple[torch.Tensor, IndexedRows]:
        prepared = self._prepare(x, rows)
        parts = []
        for slot, (state, (start, stop)) in enumerate(zip(states, rows.bounds, strict=True)):
            # The cells after the committed ones are free: what is written there becomes state only by a commit.
            self._write_slot(prepared, slot, state, stop - start)
            parts.append(self._attend_slot(prepared, rows.positions, slot, state))
        attended = torch.cat(parts) if len(parts) > 1 else parts[0]
        return attention.finish_rows(attended, prepared.projected.gate, self.weights), prepared

    def commit(self, pending: IndexedRows, slot: int, state: IndexedAttentionState, accepted_rows: int) -> None:
        self._write_slot(pending, slot, state, accepted_rows)
        self._advance(state, accepted_rows)

    def _prepare(self, x: torch.Tensor, rows: RowsInfo) -> IndexedRows:
        projected = attention.project_rows(x, self.weights, self.shape, rows.rotation)
        index_query, raw_key = indexed.index_rows(x, self.indexer_weights, self.indexer, rows.rotation)
        return IndexedRows(projected, index_query, raw_key, rows.bounds)

    def _write_slot(self, prepared: IndexedRows, slot: int, state: IndexedAttentionState, count: int) -> None:
        """Put the slot's first `count` rows behind the committed cells, and the blocks that they complete."""
        begin, first = prepared.bounds[slot][0], state.keys.count
        rows = slice(begin, begin + count)
        state.keys.write(first, prepared.projected.key[rows])
        state.values.write(first, prepared.projected.value[rows])
        state.raw.write(first, prepared.raw_key[rows])
        ratio, done = self.indexer.ratio, state.pooled.count
        complete = (first + count) // ratio
        if complete > done:
            raw = state.raw.cells[done * ratio : complete * ratio]
            pooled = indexed.pool_blocks(raw, done, self.indexer_weights, self.indexer, self.frequencies)
            state.pooled.write(done, pooled)

    def _advance(self, state: IndexedAttentionState, count: int) -> None:
        for part in (state.keys, state.values, state.raw):
            part.count += count
        state.pooled.count = state.keys.count // self.indexer.ratio

    def _attend_slot(
        self, prepared: IndexedRows, positions: torch.Tensor, slot: int, state: IndexedAttentionState
    ) -> torch.Tensor:
        """Attention of the slot's rows; the cells that they see, their own included, are written."""
        start, stop = prepared.bounds[slot]
        first, count = int(positions[start]), stop - start
        dense = min(count, max(0, self.indexer.dense_positions - first))  # rows that see every cell
        positions, index_query = positions[start:stop], prepared.index_query[start:stop]

        def over(query: torch.Tensor, keys: attention.Heads, values: attention.Heads) -> torch.Tensor:
            parts = []
            if dense:
                parts.append(attention.attend_causal(query[:dense], keys, values, positions[:dense], first + dense))
            if dense < count:
                last_complete = (first + count) // self.indexer.ratio
                scored = -(-last_complete // indexed.BLOCK_SPLIT) * indexed.BLOCK_SPLIT
                cells, is_visible = indexed.select_cells(
                    index_query[dense:], state.pooled.cells[:scored], positions[dense:], self.indexer
                )
                parts.append(indexed.attend_cells(query[dense:], keys, values, cells, is_visible))
            return torch.cat(parts) if len(parts) > 1 else parts[0]

        return attend(prepared.projected.query[start:stop], state.keys, state.values, over)
