"""What the attention of a read leaves between its launches, and how much memory that takes. Knows sizes alone.

R is the rows of a read: one slot's, one after another.
"""

from dataclasses import dataclass

import torch

from strata.kernels.attention_rows.arguments import AttentionRowsShape, Room
from strata.quant.cell_codes import CellKind

MOST_SCORES = 1 << 25  # float32 held at once: 134 MB, whatever the context
MOST_ROWS_AT_ONCE = 2048  # that are scored together
ROW_STEP = 64  # rows scored together are a multiple of it
SCORE_STEP = 128  # a row's scores begin at multiples of it
KEYS_OR_SCORES, VALUES_OR_PARTS = "attention keys or scores", "attention values or parts"  # first the latter
GROUP_BLOCKS = 8  # of which a row's greatest score is kept: no memory is read in smaller pieces


@dataclass(frozen=True)
class ReadChoice:
    """How the rows of a read choose their blocks. A float32 value for matrix units is two bfloat16: see delta_read."""

    query_parts: torch.Tensor  # bfloat16 [2, R, indexer heads, indexer head_dim]
    block_parts: torch.Tensor  # bfloat16 [2, blocks of a slot, indexer head_dim]
    scores: torch.Tensor  # float32 [rows at once, blocks of a slot and up to a multiple of SCORE_STEP]
    greatest: torch.Tensor  # float32 [rows at once, step / GROUP_BLOCKS]: the greatest score of each group of blocks
    groups: torch.Tensor  # int32 [rows at once, top_blocks]: the groups in which the best blocks lie, rising
    chosen: torch.Tensor  # int32 [R, top_blocks], rising; of rows at or beyond `dense_positions`

    @property
    def rows_at_once(self) -> int:
        """Rows that are scored together."""
        return self.scores.shape[0]

    @classmethod
    def make(cls, rows: int, shape: AttentionRowsShape, cells: int, room: Room) -> "ReadChoice":
        """For `rows` rows over slots of `cells` cells."""
        indexer, half = shape.indexer, torch.bfloat16
        assert indexer is not None
        blocks = cells // indexer.ratio
        step = -(-max(blocks, 1) // SCORE_STEP) * SCORE_STEP
        at_once = max(ROW_STEP, min(MOST_ROWS_AT_ONCE, MOST_SCORES // step // ROW_STEP * ROW_STEP))
        at_once = min(at_once, -(-rows // ROW_STEP) * ROW_STEP)
        return cls(
            room("attention query parts", 2, rows, indexer.heads, indexer.head_dim, dtype=half),
            room(VALUES_OR_PARTS, 2, blocks, indexer.head_dim, dtype=half),
            room(KEYS_OR_SCORES, at_once, step),
            room("attention greatest scores", at_once, step // GROUP_BLOCKS),
            room("attention groups", at_once, indexer.top_blocks, dtype=torch.int32),
            room("attention chosen", rows, indexer.top_blocks, dtype=torch.int32),
        )


@dataclass(frozen=True)
class AttentionReadWork:
    """What the launches of one layer of a read leave for each other; layers after one another share it."""

    query: torch.Tensor  # bfloat16 [R, query_heads, head_dim], normed, turned, times head_dim^-0.5
    keys: torch.Tensor | None  # bfloat16 [cells, kv_heads, head_dim]: a slot's cells as matrix units multiply them
    values: torch.Tensor | None  # the same; both None where cells are multiplied in place
    index_query: torch.Tensor | None = None  # float32 [R, indexer heads, indexer head_dim]
    choice: ReadChoice | None = None

    @property
    def rows(self) -> int:
        """Rows of the read."""
        return self.query.shape[0]

    @classmethod
    def make(
        cls, rows: int, shape: AttentionRowsShape, cells: int, kind: CellKind, room: Room, *, is_paged: bool = False
    ) -> "AttentionReadWork":
        """For a read of `rows` rows of slots of `cells` cells of this kind, of the tensors that `room` gives.

        is_paged: keys and values lie in main memory.
        """
        half, keys, values = torch.bfloat16, None, None
        query = room("attention query", rows, shape.query_heads, shape.head_dim, dtype=half)
        if kind is not CellKind.BF16 or is_paged:
            keys, values = (
                room(name, cells, shape.kv_heads, shape.head_dim, dtype=half)
                for name in (KEYS_OR_SCORES, VALUES_OR_PARTS)
            )
        if shape.indexer is None:
            return cls(query, keys, values)
        index_query = room("attention index query", rows, shape.indexer.heads, shape.indexer.head_dim)
        return cls(query, keys, values, index_query, ReadChoice.make(rows, shape, cells, room))

    @classmethod
    def empty(
        cls,
        rows: int,
        shape: AttentionRowsShape,
        cells: int,
        kind: CellKind,
        device: torch.device | str,
        *,
        is_paged: bool = False,
    ) -> "AttentionReadWork":
        """The same with tensors of its own; on the device "meta" it tells its size."""

        def room(name: str, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(*sizes, dtype=dtype, device=device)

        return cls.make(rows, shape, cells, kind, room, is_paged=is_paged)

    def bytes_used(self) -> int:
        """Bytes of all its tensors."""
        tensors = [self.query, self.keys, self.values, self.index_query]
        if self.choice is not None:
            tensors += vars(self.choice).values()
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def dense_rows(rows: int, position: int, shape: AttentionRowsShape) -> int:
    """How many rows of a read that begins at `position` see every cell: its first ones."""
    return rows if shape.indexer is None else min(rows, max(0, shape.indexer.dense_positions - position))
