"""Where the rows of a table lie in a model's files: what whoever reads single rows of it has to know. Reads no row.

Knows the pieces of a table and how a row's bytes become values; knows no thread and no window.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from strata.errors import WeightFileError
from strata.native import library
from strata.native.file_map import FileMap, map_of
from strata.native.packing import packs
from strata.quant.formats import by_gguf_type, by_name
from strata.quant.formats.base import Format
from strata.quant.formats.fp8_block import fp8_layout
from strata.quant.layout import TILE_ROWS, MatrixLayout
from strata.weights.gguf_source import GgufSource, RawMatrix
from strata.weights.header import FP8, StoredTensor
from strata.weights.json_files import reason_of
from strata.weights.layout import Piece
from strata.weights.safetensors import SafetensorsSource
from strata.weights.source import WeightSource


@dataclass(frozen=True)
class TablePiece:
    """Consecutive rows, one after another in a file."""

    file: Path
    opened: os.stat_result  # of the file when the model was opened
    begin: int  # of the first row
    rows: int
    scale: StoredTensor | None = None  # of FP8: [row blocks, column blocks]


@dataclass(frozen=True)
class StoredTable:
    """A table [rows, columns] in files, in pieces that lie one under another."""

    name: str
    layout: MatrixLayout  # how a tile of its rows is held
    post_scale: float
    type: int | None  # ggml's number of what the files hold; None: FP8
    scale_rows: int  # of FP8: rows that share a scale
    pieces: tuple[TablePiece, ...]

    @property
    def rows(self) -> int:
        """Of all pieces."""
        return sum(piece.rows for piece in self.pieces)


def stored_table(source: WeightSource, name: str) -> StoredTable:
    """Where a table of a source lies. Raises WeightFileError for one whose rows cannot be read from its files."""
    if isinstance(source, GgufSource):
        return _in_gguf(source, name)
    if isinstance(source, SafetensorsSource):
        return _in_safetensors(source, name)
    raise WeightFileError(f"{name} lies in no file")


def table_problem(source: WeightSource, names: Iterable[str]) -> str | None:
    """Why rows of these tables cannot be read from a source's files, in a sentence; None if they can."""
    if not library.is_available():
        return "rows of tables are read by the C++ library, which was not built"
    try:
        for name in names:
            stored_table(source, name)
    except WeightFileError as reason:
        return str(reason)
    return None


def open_piece_files(table: StoredTable) -> dict[Path, int]:
    """A descriptor of its own for every file, the caller's to close.

    Whether it is still what it was is for who reads. Raises WeightFileError for a file that cannot be opened.
    """
    found: dict[Path, int] = {}
    try:
        for piece in table.pieces:
            if piece.file not in found:
                found[piece.file] = os.open(piece.file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        close_files(found.values())
        raise WeightFileError(f"{piece.file} cannot be read: {reason_of(failure)} (tensor {table.name})") from None
    return found


def close_files(descriptors: Iterable[int]) -> None:
    """Give descriptors back."""
    for descriptor in descriptors:
        os.close(descriptor)


def _in_gguf(source: GgufSource, name: str) -> StoredTable:
    raws = source.raw(name)
    if raws is None or len({(raw.type.number, raw.post_scale) for raw in raws}) > 1:
        raise WeightFileError(f"{source.directory}: {name} stands in several kinds or orders in its file")
    kind = _readable(by_gguf_type(raws[0].type.number), f"{source.directory}: {name}")
    factor = kind.factor(raws[0].post_scale)
    pieces = tuple(_piece_of(raw, f"{source.directory}: {name}") for raw in raws)
    return StoredTable(name, kind.layout(TILE_ROWS, raws[0].columns), factor, kind.gguf_type, 0, pieces)


def _piece_of(raw: RawMatrix, what: str) -> TablePiece:
    found = map_of(raw.data)
    if found is None or not isinstance(found[0], FileMap):
        raise WeightFileError(f"{what} stands in another order in its file")
    return TablePiece(found[0].path, found[0].opened, found[1], len(raw.data))


def _in_safetensors(source: SafetensorsSource, name: str) -> StoredTable:
    stored, columns = source.stored_pieces(name), source.shape(name)[1]
    code = stored[0].stored.code
    if code == FP8:
        block = source.fp8_block
        assert block is not None  # the layout was refused otherwise
        layout = fp8_layout(TILE_ROWS, columns, block[1])
        return StoredTable(name, layout, 1.0, None, block[0], tuple(map(_stored_piece, stored)))
    kind = _readable(by_name(code), f"{source.directory}: {name}")
    layout = kind.layout(TILE_ROWS, columns)
    return StoredTable(name, layout, kind.factor(1.0), kind.gguf_type, 0, tuple(map(_stored_piece, stored)))


def _stored_piece(piece: Piece) -> TablePiece:
    stored = piece.stored
    assert stored.opened is not None  # it came from a file's header
    return TablePiece(stored.file, stored.opened, stored.begin, stored.shape[0], piece.scale)


def _readable(kind: Format, what: str) -> Format:
    if not packs(kind.gguf_type):
        raise WeightFileError(f"{what}: single rows of {kind.name} are not read from a file")
    return kind
