"""A WeightSource over a model directory exactly as published on the hub: sharded safetensors, bf16 or block FP8.

Knows how canonical tensors are read from their pieces; what is in the files is checked when they are opened, and
values are read only on request. Knows no model family.
"""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from strata.errors import WeightFileError
from strata.weights.directory import read_config, read_stored_tensors
from strata.weights.experts import StoredMatrix, read_expert, read_matrices
from strata.weights.layout import CanonicalTensor, Layout, Piece, build_layout
from strata.weights.quantization import read_weight_block
from strata.weights.reading import read_piece
from strata.weights.rows import TableReader

# Called while tensors are read: stored bytes read so far, stored bytes of everything announced, the tensor's name.
ProgressCallback = Callable[[int, int, str], None]


class SafetensorsSource:
    """The tensors of one model directory. Made by `open_model`; not thread-safe."""

    config_origin = "config.json"  # in messages

    def __init__(self, directory: Path, config: Mapping[str, Any], layout: Layout) -> None:
        self.directory = directory
        self.config = config  # config.json as it is
        self._layout = layout
        self._block = read_weight_block(config)
        self._tables: dict[str, TableReader] = {}
        self._on_progress: ProgressCallback | None = None
        self._bytes_done = 0
        self._bytes_total = 0

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences for the user about what was left out; empty if nothing was."""
        if not self._layout.vision_tensors:
            return ()
        return (
            f"{self._layout.vision_tensors:,} vision tensors ({self._layout.vision_bytes / 2**30:.2f} GiB) are not "
            "read: Strata reads text",
        )

    def names(self) -> Collection[str]:
        return self._layout.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def stored_bytes(self, name: str) -> int:
        """Bytes that the tensor takes in its files, block scales included. Raises WeightFileError if it is missing."""
        return self._find(name).stored_bytes

    def stored_code(self, name: str) -> str:
        """The storage type as the files write it: `BF16`, `F8_E4M3`. Raises WeightFileError if it is missing."""
        return self._find(name).code

    def report_progress(self, names: Iterable[str], on_progress: ProgressCallback | None) -> None:
        """From now on tell `on_progress` how far the reading of the tensors `names` has come; None stops it."""
        self._on_progress = on_progress
        self._bytes_done = 0
        self._bytes_total = sum(self._find(name).stored_bytes for name in names)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        found = self._find(name)
        stored_dtype = found.pieces[0].stored.dtype
        out = torch.empty(found.shape, dtype=dtype if stored_dtype.is_floating_point else stored_dtype)
        for piece in found.pieces:
            read_piece(piece, self._block, out[piece.where], lambda count: self._advance(count, name))
        return out

    def pieces(self, name: str, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """The tensor as its files hold it, one file's piece after another in the order of its memory."""
        for piece in self._find(name).pieces:
            out = torch.empty(piece.stored.shape, dtype=dtype)
            read_piece(piece, self._block, out, lambda count: self._advance(count, name))
            yield out

    def rows(self, name: str, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if name not in self._tables:
            self._tables[name] = TableReader(self._find(name), self._block)
        return self._tables[name].rows(row_ids, dtype)

    def raw(self, name: str) -> tuple[StoredMatrix, ...]:
        """A matrix as it is stored, in matrices that lie one under another in it."""
        return read_matrices(self._find(name), self._block, lambda count: self._advance(count, name))

    def stored_pieces(self, name: str) -> tuple[Piece, ...]:
        """Where its files hold the pieces of a tensor, in the order of its memory."""
        return self._find(name).pieces

    def raw_expert(self, name: str, expert: int) -> tuple[StoredMatrix, ...]:
        """One expert of a packed tensor as it is stored: its matrices one under another, gate above up."""
        return read_expert(self._find(name), expert, self._block, lambda count: self._advance(count, name))

    @property
    def fp8_block(self) -> tuple[int, int] | None:
        """Rows and columns that share a scale; None if the model declares none."""
        return self._block

    def close(self) -> None:
        """Give the files back that reading rows keeps open; a later read opens them again."""
        for table in self._tables.values():
            table.close()

    def _advance(self, count: int, name: str) -> None:
        if self._on_progress is not None:
            self._bytes_done += count
            self._on_progress(self._bytes_done, self._bytes_total, name)

    def _find(self, name: str) -> CanonicalTensor:
        if name not in self._layout.tensors:
            raise WeightFileError(f"{self.directory}: tensor {name} is missing")
        return self._layout.tensors[name]


def open_model(directory: Path) -> SafetensorsSource:
    """Open a model directory; reads config.json, the index and the headers of the files, and no value.

    Raises ModelError (ConfigError, WeightFileError) with one sentence for everything that is wrong with them.
    """
    config = read_config(directory)
    block = read_weight_block(config)
    with _no_garbage_collection():
        layout = build_layout(read_stored_tensors(directory), block)
    return SafetensorsSource(directory, config, layout)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Headers of a large model are a million small objects that all stay: looking for garbage among them takes longer
    than reading them (148,383 tensors on two busy cores: 7.7 s with it, 3.3 s without)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
