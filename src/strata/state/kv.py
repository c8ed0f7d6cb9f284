"""Rows of a slot that grow with its text: key and value cells, indexer keys. Knows no model.

cells 0 .. count          committed: part of the state
cells count .. capacity   zeros, or stale finite rows of windows that were not accepted; masked by every reader
"""

import torch

CELL_STEP = 512  # capacity is a multiple of it: attention reads whole splits of 512 cells


class GrowingRows:
    """A tensor [capacity, *row_shape] of which the first `count` rows are committed."""

    def __init__(self, row_shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.count = 0
        self._cells = torch.zeros(0, *row_shape, dtype=dtype, device=device)

    @property
    def cells(self) -> torch.Tensor:
        """The whole buffer [capacity, *row_shape]."""
        return self._cells

    def reserve(self, count: int) -> None:
        """Make room for `count` rows, committed ones included; those beyond are for others to write."""
        if count > self._cells.shape[0]:
            self._grow(count)

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Put `rows` at start.. without committing them; grows the buffer where needed."""
        stop = start + rows.shape[0]
        self.reserve(stop)
        self._cells[start:stop] = rows

    def append(self, rows: torch.Tensor) -> None:
        """Put `rows` after the committed ones and commit them."""
        self.write(self.count, rows)
        self.count += rows.shape[0]

    def truncate(self, count: int) -> None:
        """Keep the first `count` committed rows."""
        self.count = min(self.count, count)

    def bytes_used(self) -> int:
        return self._cells.numel() * self._cells.element_size()

    def clone(self, count: int | None = None) -> "GrowingRows":
        """An independent copy of the first `count` committed rows; None: of all."""
        rows = self._cells[: self.count if count is None else min(count, self.count)]
        copy = GrowingRows(tuple(self._cells.shape[1:]), self._cells.dtype, self._cells.device)
        if rows.shape[0]:
            copy.append(rows)
        return copy

    def take_checkpoint(self, *, is_mark: bool) -> int:
        """See `state.checkpoints.Restorable`: the rows themselves stay where they are."""
        return self.count

    def go_back(self, saved: int) -> None:
        """See `state.checkpoints.Restorable`."""
        self.truncate(saved)

    def fork(self, saved: int) -> "GrowingRows":
        """See `state.checkpoints.Restorable`."""
        return self.clone(saved)

    def _grow(self, needed: int) -> None:
        # a quarter more than needed: a text of n rows is copied a bounded number of times, not n / 512 times
        wanted = max(needed, self._cells.shape[0] + self._cells.shape[0] // 4)
        capacity = -(-wanted // CELL_STEP) * CELL_STEP
        grown = self._cells.new_zeros(capacity, *self._cells.shape[1:])
        grown[: self._cells.shape[0]] = self._cells
        self._cells = grown
