"""Which slot, position and token each row of a window has, as the kernels read it. Knows no model and no sampling.

rows       0  1  2 | 3 | 4  5 | 6  7      a bucket of eight rows with three slots, two rows unused
slots      4  4  4 | 0 | 2  2 |-1 -1
segments   0         1   2                 a slot's rows are consecutive and their positions rise by one
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Segment:
    """The consecutive rows of one slot."""

    index: int  # among the segments
    slot: int
    start: int  # its first row
    count: int


@dataclass(frozen=True)
class WindowRows:
    """int32 tensors on the computing device, filled by the window's first kernel; their sizes never change."""

    tokens: torch.Tensor  # [rows]
    slots: torch.Tensor  # [rows]: which slot's state; -1: an unused row, whose results nobody reads
    positions: torch.Tensor  # [rows]
    first_rows: torch.Tensor  # [rows]: the first row of the same slot
    segment_slots: torch.Tensor  # [segments]: -1: an unused segment
    segment_starts: torch.Tensor  # [segments]: its first row
    segment_counts: torch.Tensor  # [segments]: its rows; 0: unused

    @property
    def count(self) -> int:
        """Rows of the bucket."""
        return self.tokens.numel()

    @property
    def segments(self) -> int:
        """Slots that may share the window."""
        return self.segment_slots.numel()

    def used_segments(self) -> list[Segment]:
        """The segments that have rows, as integers of the host: for the twins, which may read what a graph may not."""
        found = zip(
            self.segment_slots.tolist(), self.segment_starts.tolist(), self.segment_counts.tolist(), strict=True
        )
        return [Segment(index, *values) for index, values in enumerate(found) if values[0] >= 0 and values[2] > 0]

    @classmethod
    def empty(cls, rows: int, segments: int, device: torch.device | str) -> "WindowRows":
        """Room for a bucket, with every row and segment unused."""

        def room(count: int, value: int) -> torch.Tensor:
            return torch.full((count,), value, dtype=torch.int32, device=device)

        per_row = (room(rows, 0), room(rows, -1), room(rows, 0), room(rows, 0))
        return cls(*per_row, room(segments, -1), room(segments, 0), room(segments, 0))
