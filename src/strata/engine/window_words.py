"""The small words of a bucket on a device: which rows it has, and the tokens that were chosen behind them.

Knows int32 words and how they lie: each kind in one tensor, so that one copy sets it or takes it to another device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.kernels.sampler.buffers import ChosenTokens
from strata.kernels.window_rows import WindowRows

BY_ROW, BY_SEGMENT = 4, 3  # fields of `WindowRows`


@dataclass(frozen=True)
class RowsPart:
    """Consecutive rows of one slot, from its position on."""

    slot: int
    position: int
    tokens: Sequence[int]


@dataclass(frozen=True)
class BucketWords:
    """int32 on the computing device."""

    rows: torch.Tensor  # all of a bucket's `WindowRows`
    chosen: torch.Tensor  # all of its `ChosenTokens`

    @classmethod
    def empty(cls, rows: int, segments: int, device: torch.device) -> "BucketWords":
        """Rows that name no slot, and no token."""
        unused = torch.tensor(row_words(rows, segments, ()), dtype=torch.int32, device=device)
        chosen = torch.zeros(2, _room(rows), dtype=torch.int32, device=device)
        chosen[0].fill_(-1)
        return cls(unused, chosen)

    def view_rows(self, rows: int, segments: int) -> WindowRows:
        """The same, field by field."""
        fields = self.rows.split([_room(rows)] * BY_ROW + [_room(segments)] * BY_SEGMENT)
        per_row = (field[:rows] for field in fields[:BY_ROW])
        return WindowRows(*per_row, *(field[:segments] for field in fields[BY_ROW:]))

    def view_chosen(self, rows: int) -> ChosenTokens:
        """The same, field by field."""
        return ChosenTokens(self.chosen[0, :rows], self.chosen[1, :rows])


def row_words(rows: int, segments: int, parts: Sequence[RowsPart]) -> list[int]:
    """The words of `BucketWords.rows` for these parts, part s being segment s, the rest unused."""
    tokens: list[int] = []
    slots: list[int] = []
    positions: list[int] = []
    firsts: list[int] = []
    starts: list[int] = []
    for part in parts:
        count, start = len(part.tokens), len(tokens)
        starts.append(start)
        tokens += part.tokens
        slots += [part.slot] * count
        positions += range(part.position, part.position + count)
        firsts += [start] * count
    counts = [len(part.tokens) for part in parts]
    per_row = (tokens, 0), (slots, -1), (positions, 0), (firsts, 0)
    per_segment = ([part.slot for part in parts], -1), (starts, 0), (counts, 0)
    words: list[int] = []
    for fields, room in ((per_row, _room(rows)), (per_segment, _room(segments))):
        for values, unused in fields:
            words += [*values, *[unused] * (room - len(values))]
    return words


def _room(count: int) -> int:
    """Words that a field takes: it begins at a multiple of 64 bytes, so that every bucket runs the same kernels."""
    return -(-count // 16) * 16
