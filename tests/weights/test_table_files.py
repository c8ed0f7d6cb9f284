"""Where tables lie in a model's files, and which of them single rows are read of."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from strata.errors import WeightFileError
from strata.native import library
from strata.quant.formats import by_gguf_type
from strata.weights.opening import ModelSource, open_model
from strata.weights.source import MemorySource
from strata.weights.table_files import StoredTable, close_files, open_piece_files, stored_table, table_problem
from tests.weights.gguf_models import gguf
from tests.weights.model_files import write_model

needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
SHARDED = "model.layers.0.ple.ple_embedding.ngram_embedding.weight"
SHARD = "model.layers.0.ple.ple_embedding.ngram_embedding.shard_{}.weight"


def table_of(source: ModelSource) -> str:
    """The name of its only n-gram table."""
    (name,) = (name for name in source.names() if name.endswith(".ngram_embedding.weight"))
    return name


def row_bytes(table: StoredTable) -> int:
    """That a row takes in its file."""
    assert table.type is not None
    return by_gguf_type(table.type).row_bytes(table.layout.columns)


@needs_library
def test_a_gguf_table_lies_where_its_bytes_are() -> None:
    source = open_model(gguf("qwen4_exp", "Q8_0"), "none")
    name = table_of(source)
    table = stored_table(source, name)
    (piece,) = table.pieces
    assert (table.rows, table.layout.columns) == tuple(source.shape(name))
    with open(piece.file, "rb") as file:
        file.seek(piece.begin + 5 * row_bytes(table))
        raw = file.read(row_bytes(table))
    assert table.type is not None
    found = torch.from_numpy(by_gguf_type(table.type).dequantize(raw))
    assert torch.equal(found, source.rows(name, torch.tensor([5]), torch.float32)[0])


@needs_library
def test_shards_are_pieces_in_their_order(tmp_path: Path) -> None:
    values = torch.randn(10, 16).bfloat16()
    shards = {"a.safetensors": {SHARD.format(1): values[4:]}, "b.safetensors": {SHARD.format(0): values[:4]}}
    source = open_model(write_model(tmp_path / "model", shards), "none")
    table = stored_table(source, SHARDED)
    assert [(piece.file.name, piece.rows) for piece in table.pieces] == [("b.safetensors", 4), ("a.safetensors", 6)]
    for piece, wanted in zip(table.pieces, (values[:4], values[4:]), strict=True):
        raw = piece.file.read_bytes()[piece.begin : piece.begin + piece.rows * row_bytes(table)]
        assert torch.equal(torch.frombuffer(bytearray(raw), dtype=torch.bfloat16).view(-1, 16), wanted)


@needs_library
def test_tables_that_are_not_read_by_rows_are_told() -> None:
    source = open_model(gguf("qwen4_exp", "Q8_0"), "none")
    assert table_problem(source, [table_of(source)]) is None
    problem = table_problem(MemorySource({"table": torch.zeros(4, 8)}), ["table"])
    assert problem == "table lies in no file"


def test_without_the_library_no_row_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_available", lambda: False)
    assert table_problem(MemorySource({}), []) == "rows of tables are read by the C++ library, which was not built"


@needs_library
def test_a_file_that_is_not_there_any_more_is_refused(tmp_path: Path) -> None:
    file = Path(shutil.copy(gguf("qwen4_exp", "Q8_0"), tmp_path / "model.gguf"))
    source = open_model(file, "none")
    table = stored_table(source, table_of(source))
    close_files(open_piece_files(table).values())
    before = len(os.listdir("/proc/self/fd"))
    file.unlink()
    with pytest.raises(WeightFileError, match=r"model\.gguf cannot be read: no such file"):
        open_piece_files(table)
    assert len(os.listdir("/proc/self/fd")) == before
