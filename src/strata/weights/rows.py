"""Single rows of a large table straight from its files, without reading the rest: n-gram tables of tens of GB.

Knows pieces, offsets and FP8 blocks. Rows are read with pread: a broken disk is then a sentence, where through a memory
map it would end the process; a row in the system's cache takes about 4 us instead of 2.
"""

import os
from pathlib import Path

import torch

from strata.errors import WeightFileError
from strata.weights.fp8 import decode_scaled
from strata.weights.json_files import reason_of
from strata.weights.layout import CanonicalTensor
from strata.weights.reading import check_finite, read_scale


class TableReader:
    """Row access to one table [rows, columns] that one or many files hold. Keeps FP8 scales in memory."""

    def __init__(self, table: CanonicalTensor, block: tuple[int, int] | None) -> None:
        if len(table.shape) != 2:
            raise WeightFileError(f"tensor {table.name} has shape {list(table.shape)}; only a matrix is read by rows")
        counts = torch.tensor([piece.stored.shape[0] for piece in table.pieces])
        self._table = table
        self._block = block
        self._first_rows = counts.cumsum(0) - counts  # [pieces]
        self._descriptors: dict[Path, int] = {}
        self._scales: dict[int, torch.Tensor] = {}

    def close(self) -> None:
        """Give the open files back."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def rows(self, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """row_ids [n] int64 -> [n, columns] in `dtype`. Every row is read once, in the order of the files."""
        rows, columns = self._table.shape
        lowest, highest = (int(row_ids.min()), int(row_ids.max())) if row_ids.numel() else (0, 0)
        if lowest < 0 or highest >= rows:
            name = self._table.name
            raise WeightFileError(f"rows {lowest} to {highest} of {name} were asked for; it has {rows:,}")
        wanted, places = row_ids.cpu().unique(return_inverse=True)
        piece_of = torch.bucketize(wanted, self._first_rows, right=True) - 1
        local = wanted - self._first_rows[piece_of]
        raw = torch.empty(len(wanted), columns, dtype=self._table.pieces[0].stored.dtype)
        data = memoryview(raw.reshape(-1).view(torch.uint8).numpy().data)
        row_bytes = columns * raw.dtype.itemsize
        for position, (piece, row) in enumerate(zip(piece_of.tolist(), local.tolist(), strict=True)):
            self._read_row(piece, row, data[position * row_bytes : (position + 1) * row_bytes])
        if self._block is not None and self._table.pieces[0].scale is not None:
            raw = decode_scaled(raw, self._scale_rows(piece_of, local // self._block[0]), self._block)
        values = raw.to(dtype)
        self._check(values, piece_of)
        return values[places]

    def _read_row(self, index: int, row: int, target: memoryview) -> None:
        stored = self._table.pieces[index].stored
        try:
            if stored.file not in self._descriptors:
                descriptor = os.open(stored.file, os.O_RDONLY | os.O_CLOEXEC)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead of single rows
                self._descriptors[stored.file] = descriptor
            offset = stored.begin + row * len(target)
            if os.preadv(self._descriptors[stored.file], [target], offset) != len(target):
                raise WeightFileError(f"{stored.file} ended while tensor {stored.name} was read: did it change?")
        except OSError as failure:
            raise WeightFileError(
                f"{stored.file} cannot be read: {reason_of(failure)} (tensor {stored.name})"
            ) from None

    def _scale_rows(self, piece_of: torch.Tensor, block_rows: torch.Tensor) -> torch.Tensor:
        """The scales of rows by piece and block row, both [n] -> [n, column blocks] float32."""
        found = []
        for index, block_row in zip(piece_of.tolist(), block_rows.tolist(), strict=True):
            if index not in self._scales:
                scale = self._table.pieces[index].scale
                assert scale is not None  # the layout was refused otherwise
                self._scales[index] = read_scale(scale)
            found.append(self._scales[index][block_row])
        return torch.stack(found) if found else torch.empty(0, 1)

    def _check(self, values: torch.Tensor, piece_of: torch.Tensor) -> None:
        """Refuse rows that are not finite, naming the piece that holds the first of them."""
        if values.numel() == 0:
            return
        low, high = torch.aminmax(values)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            bad = int((~torch.isfinite(values)).any(dim=1).nonzero()[0])
            check_finite(values[bad], self._table.pieces[int(piece_of[bad])].stored)
