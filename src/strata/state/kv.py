"""Rows of a slot that grow with its text: key and value cells as they are stored, indexer keys. Knows no model.

cells 0 .. count          committed: part of the state
cells count .. capacity   zeros, or stale finite rows of windows that were not accepted; masked by every reader
"""

from collections.abc import Sequence
from typing import Any

import torch

from strata.quant.cell_codes import CellCode, CellRows, decode, encode

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


class GrowingCells:
    """Keys or values of a slot as `code` stores them, which are read as heads [cells, kv_heads, head_dim].

    Heads of F32 are kept as they were computed, in `dtype`. Raises ValueError at the first write where the code has
    scales and head_dim is none of `cell_codes.HEAD_DIMS`.
    """

    def __init__(self, code: CellCode, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.code, self.head_dim = code, head_dim
        kept = dtype if code is CellCode.F32 else code.dtype
        self.codes = GrowingRows((kv_heads, code.code_columns(head_dim)), kept)
        self.scales = GrowingRows((kv_heads, code.groups(head_dim)), torch.float16) if code.has_scales else None

    @property
    def count(self) -> int:
        """How many cells are committed."""
        return self.codes.count

    @count.setter
    def count(self, count: int) -> None:
        for part in self._parts():
            part.count = count

    @property
    def shape(self) -> tuple[int, int, int]:
        """[capacity, kv_heads, head_dim]."""
        return (*self.codes.cells.shape[:2], self.head_dim)

    def __getitem__(self, place: Any) -> torch.Tensor:
        """Heads [..., kv_heads, head_dim] of the cells at `place`, a slice or a tensor of numbers; see `decode`."""
        codes = self.codes.cells[place]
        if self.scales is None:
            return codes
        return decode(self.code, CellRows(codes, self.scales.cells[place]), self.head_dim)

    def reserve(self, count: int) -> None:
        """Make room for `count` cells, committed ones included."""
        for part in self._parts():
            part.reserve(count)

    def write(self, start: int, heads: torch.Tensor) -> None:
        """Store heads [cells, kv_heads, head_dim] at start.. without committing them."""
        if self.scales is None:
            self.codes.write(start, heads)
            return
        rows = encode(self.code, heads.float())
        assert rows.scales is not None  # as the code has them
        self.codes.write(start, rows.codes)
        self.scales.write(start, rows.scales)

    def append(self, heads: torch.Tensor) -> None:
        """Store heads after the committed ones and commit them."""
        self.write(self.count, heads)
        self.count += heads.shape[0]

    def truncate(self, count: int) -> None:
        """Keep the first `count` committed cells."""
        self.count = min(self.count, count)

    def bytes_used(self) -> int:
        return sum(part.bytes_used() for part in self._parts())

    def clone(self, count: int | None = None) -> "GrowingCells":
        """An independent copy of the first `count` committed cells; None: of all."""
        copy = GrowingCells(self.code, *self.shape[1:], self.codes.cells.dtype)
        copy.codes = self.codes.clone(count)
        copy.scales = None if self.scales is None else self.scales.clone(count)
        return copy

    def take_checkpoint(self, *, is_mark: bool) -> int:
        """See `state.checkpoints.Restorable`: the cells themselves stay where they are."""
        return self.count

    def go_back(self, saved: int) -> None:
        """See `state.checkpoints.Restorable`."""
        self.truncate(saved)

    def fork(self, saved: int) -> "GrowingCells":
        """See `state.checkpoints.Restorable`."""
        return self.clone(saved)

    def _parts(self) -> Sequence[GrowingRows]:
        return (self.codes,) if self.scales is None else (self.codes, self.scales)
