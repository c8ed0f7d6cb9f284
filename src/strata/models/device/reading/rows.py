"""Which rows a chunk has: tokens and positions of one slot, on the device, and runs of them as kernels read them.

Knows no model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from strata.kernels.window_rows import WindowRows
from strata.models.device.reading.room import ReadRoom

FIELDS = 5  # tokens, slots, positions, zeros, and where a run of n-grams begins its length
NGRAM_ROWS = 1024  # of such a run


@dataclass(frozen=True)
class Run:
    """Rows `start` to `stop` of a chunk."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many rows it has."""
        return self.stop - self.start

    def cut(self, most: int) -> Iterator["Run"]:
        """In pieces of at most so many rows."""
        for start in range(self.start, self.stop, most):
            yield Run(start, min(self.stop, start + most))


@dataclass(frozen=True)
class ChunkRows:
    """Consecutive rows of one slot, from `position` on."""

    slot: int
    position: int
    count: int
    marks: tuple[int, ...]  # rising rows of the chunk, or its end, on the grid of positions: the state there is kept
    words: torch.Tensor  # int32 [FIELDS, capacity]

    @classmethod
    def empty(cls, room: ReadRoom, capacity: int) -> torch.Tensor:
        """The words of a chunk of up to `capacity` rows."""
        return room.take("rows", FIELDS, capacity, dtype=torch.int32)

    @property
    def capacity(self) -> int:
        """The most rows that a chunk may have."""
        return self.words.shape[1]

    @property
    def tokens(self) -> torch.Tensor:
        """int32 [rows]."""
        return self.words[0, : self.count]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All rows, in pieces between the marks."""
        return tuple(Run(start, stop) for start, stop in pairwise(sorted({0, *self.marks, self.count})))

    @property
    def ngram_runs(self) -> list[Run]:
        """The same, short enough for what n-grams take of memory."""
        return [piece for run in self.runs for piece in run.cut(NGRAM_ROWS)]

    def window(self, run: Run) -> WindowRows:
        """Rows of the chunk as rows of a window, all of one segment; how many it has is told of `ngram_runs` alone."""
        tokens, slots, positions, zeros, lengths = self.words[:, run.start : run.stop]
        return WindowRows(tokens, slots, positions, zeros, slots[:1], zeros[:1], lengths[:1])

    def host_words(self, token_ids: torch.Tensor) -> torch.Tensor:
        """What `words` must hold, int32 [FIELDS, rows], in main memory; token_ids int64 [rows]."""
        values = torch.zeros(FIELDS, self.count, dtype=torch.int32)
        values[0] = token_ids
        values[1] = self.slot
        values[2] = torch.arange(self.position, self.position + self.count)
        for run in self.ngram_runs:
            values[4, run.start] = run.count
        return values
