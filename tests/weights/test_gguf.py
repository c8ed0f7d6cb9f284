"""The GGUF reader: good files as the `gguf` package reads and writes them, broken ones refused in one sentence."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strata.errors import ModelError, WeightFileError
from strata.weights.gguf import is_gguf, open_gguf, read_file
from strata.weights.gguf_types import TYPES
from strata.weights.gguf_writer import Pair
from tests.weights.gguf_files import ARCHITECTURE, entry, pair, raw, text, write

A = torch.arange(24.0).reshape(4, 6)
U64 = 1 << 64


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    model = open_gguf(write(tmp_path / "m.gguf", tensors={"a": A, "b": A[0], "c": A.reshape(2, 2, 6)}))
    assert model.architecture == "qwen3moe"
    assert {name: tensor.shape for name, tensor in model.tensors.items()} == {"a": (4, 6), "b": (6,), "c": (2, 2, 6)}
    rows = model.rows_of(model.tensors["a"])
    assert rows.shape == (4, 24)
    assert np.array_equal(rows.reshape(-1).view(np.float32), A.reshape(-1).numpy())


def test_the_gguf_package_reads_our_files_and_we_read_its(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    pairs = [
        ARCHITECTURE,
        Pair("x.list", "[i32]", [1, -2]),
        Pair("x.words", "[text]", ["a", "é"]),
        Pair("x.f", "f32", 0.5),
    ]
    ours = gguf.GGUFReader(write(tmp_path / "ours.gguf", pairs, {"a": A}))
    assert ours.get_field("x.list").contents() == [1, -2]
    assert ours.get_field("x.words").contents() == ["a", "é"]
    assert np.array_equal(ours.tensors[0].data, A.numpy())
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "qwen3moe")
    writer.add_array("x.words", ["b", "ß"])
    writer.add_tensor("a", A.numpy())
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    theirs = open_gguf(tmp_path / "theirs.gguf")
    assert theirs.metadata["x.words"] == ["b", "ß"]
    assert np.array_equal(theirs.rows_of(theirs.tensors["a"]).reshape(-1).view(np.float32), A.reshape(-1).numpy())


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    for kind, (weights, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name in ("Q8_1", "Q8_K"):  # of activations: no file holds them
            continue
        found = TYPES[int(kind)]
        assert (found.name, found.block_weights, found.block_bytes) == (kind.name, weights, size)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "magic": ({"magic": b"GGML"}, "no GGUF file"),
    "version 1": ({"version": 1}, "version 1; supported"),
    "big-endian": ({"version": 3 << 24}, "big-endian"),
    "tensor count": ({"counts": (1 << 60, 0)}, "what the header announces"),
    "key count": ({"counts": (0, U64 - 1)}, "what the header announces"),
    "long key": ({"pairs": [struct.pack("<Q", 1 << 60) + b"abcdefghijklmnop"]}, "a metadata key needs"),
    "long string": ({"pairs": [pair("a.b", 8, struct.pack("<Q", 1 << 60))]}, "the value of 'a.b' needs"),
    "unknown kind": ({"pairs": [pair("a.b", 13, b"")]}, "kind 13"),
    "long array": ({"pairs": [pair("a.b", 9, struct.pack("<IQ", 4, 1 << 62))]}, "'a.b' needs"),
    "long string array": ({"pairs": [pair("a.b", 9, struct.pack("<IQ", 8, 1 << 61))]}, "'a.b' needs"),
    "string in array": ({"pairs": [pair("a.b", 9, struct.pack("<IQQ", 8, 1, U64 - 4))]}, "a string of 'a.b' goes past"),
    "array of arrays": ({"pairs": [pair("a.b", 9, struct.pack("<IQ", 9, 0))]}, "array of arrays"),
    "same key twice": ({"pairs": [pair("a", 7, b"\1"), pair("a", 7, b"\1")]}, "key 'a' twice"),
    "key no text": ({"pairs": [pair("a", 7, b"\1").replace(b"a", b"\xff")]}, "not valid UTF-8"),
    "alignment": ({"pairs": [pair("general.alignment", 4, struct.pack("<I", 24))]}, "24 is no power of two"),
    "no sizes": ({"entries": [entry("a", [])]}, "has 0 sizes"),
    "many sizes": ({"entries": [entry("a", [1] * 5)]}, "has 5 sizes"),
    "size of 0": ({"entries": [entry("a", [0, 4])]}, "sizes above 0"),
    "sizes that overflow": ({"entries": [entry("a", [1 << 40, 1 << 40])]}, "ends at byte"),
    "unknown type": ({"entries": [entry("a", [32], 99)]}, "type 99, which is not known"),
    "part of a block": ({"entries": [entry("a", [33], 2)]}, "rows of a multiple of 32"),
    "offset outside": ({"entries": [entry("a", [4], 0, 1 << 50)], "data": bytes(64)}, "ends at byte"),
    "offset not aligned": ({"entries": [entry("a", [4], 0, 4)], "data": bytes(64)}, "no multiple of 32"),
    "overlap": ({"entries": [entry("a", [16]), entry("b", [16], 0, 32)], "data": bytes(128)}, "'b' overlaps 'a'"),
    "same tensor twice": ({"entries": [entry("a", [4]), entry("a", [4], 0, 32)], "data": bytes(64)}, "'a' twice"),
    "truncated": ({"entries": [entry("a", [64])], "data": bytes(255)}, "truncated or broken"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    parts, words = CASES[case]
    with pytest.raises(WeightFileError, match=words) as caught:
        read_file(raw(tmp_path / "m.gguf", **{"data": bytes(64), **parts}))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        open_gguf(tmp_path / "none.gguf")
    (tmp_path / "short.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightFileError, match="holds 4 bytes"):
        open_gguf(tmp_path / "short.gguf")
    with pytest.raises(WeightFileError, match="not a regular file"):
        open_gguf(tmp_path)
    assert is_gguf(tmp_path / "short.gguf")
    assert not is_gguf(tmp_path)
    (tmp_path / "named-otherwise").write_bytes(b"GGUF and more")
    assert is_gguf(tmp_path / "named-otherwise")


def shard(folder: Path, number: int, count: int, names: str, total: int = 2, name: str = "m", said: int = 0) -> Path:
    """One file of a split model; `said` is the number that it gives itself, if not its own."""
    pairs = [
        Pair("split.no", "u16", (said or number) - 1),
        Pair("split.count", "u16", count),
        Pair("split.tensors.count", "i32", total),
        Pair("general.name", "text", name),
    ]
    pairs += [ARCHITECTURE] if number == 1 else []
    return write(folder / f"m-{number:05d}-of-{count:05d}.gguf", pairs, dict.fromkeys(names, A))


def test_the_files_of_a_split_model_are_found_beside_the_first(tmp_path: Path) -> None:
    first = shard(tmp_path, 1, 3, "")
    shard(tmp_path, 2, 3, "a")
    shard(tmp_path, 3, 3, "b")
    model = open_gguf(first)
    assert sorted(model.tensors) == ["a", "b"]
    assert len(model.paths) == 3
    assert model.rows_of(model.tensors["b"]).shape == (4, 24)


SPLITS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "missing": ([{"number": 1, "names": "a"}], "m-00002-of-00002.gguf is missing"),
    "another model": (
        [{"number": 1, "names": "a"}, {"number": 2, "names": "b", "name": "n"}],
        "belongs to another model",
    ),
    "another count": (
        [{"number": 1, "names": "a"}, {"number": 2, "names": "b", "total": 3}],
        "belongs to another model",
    ),
    "wrong order": ([{"number": 1, "names": "a"}, {"number": 2, "names": "b", "said": 3}], "says that it is file 3"),
    "tensor in both": ([{"number": 1, "names": "a"}, {"number": 2, "names": "a"}], "'a' is in two files"),
    "tensor missing": ([{"number": 1, "names": "a"}, {"number": 2, "names": ""}], "hold 1 tensors, .* announces 2"),
}


@pytest.mark.parametrize("case", SPLITS)
def test_a_split_model_that_does_not_fit_together_is_refused(tmp_path: Path, case: str) -> None:
    parts, words = SPLITS[case]
    first, *_ = [shard(tmp_path, count=2, **part) for part in parts]
    with pytest.raises(WeightFileError, match=words):
        open_gguf(first)


def test_only_the_first_file_of_a_split_model_is_taken(tmp_path: Path) -> None:
    shard(tmp_path, 1, 2, "a")
    with pytest.raises(WeightFileError, match="not the first of its 2 files"):
        open_gguf(shard(tmp_path, 2, 2, "b"))
    renamed = (tmp_path / "m-00001-of-00002.gguf").rename(tmp_path / "model.gguf")
    with pytest.raises(WeightFileError, match="found by names that end with"):
        open_gguf(renamed)


def test_strings_that_are_no_text_are_refused_when_they_are_read(tmp_path: Path) -> None:
    key = pair("a.b", 9, struct.pack("<IQ", 8, 2) + text("fine") + text(b"\xff"))
    file = read_file(raw(tmp_path / "m.gguf", [key]))
    with pytest.raises(WeightFileError, match=r"string 1 of a\.b is not valid UTF-8"):
        file.metadata.texts("a.b")
