"""A file's header is checked before anything is used: every defect is one sentence that names the file."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from strata.errors import WeightFileError
from strata.weights.header import read_header
from tests.weights.model_files import write_file, write_raw


def entry(code: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": code, "shape": shape, "data_offsets": [begin, end]}


def test_files_of_the_formats_own_writer_are_read(tmp_path: Path) -> None:
    tensors = {
        "a": torch.zeros(3, 5),
        "b": torch.zeros(2, dtype=torch.bfloat16),
        "n": torch.tensor(7),
        "e": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = read_header(tmp_path / "x.safetensors")
    assert {name: (item.shape, item.dtype) for name, item in found.items()} == {
        name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()
    }
    data = (tmp_path / "x.safetensors").read_bytes()
    assert data[found["n"].begin : found["n"].end] == (7).to_bytes(8, "little")


GOOD = entry("F32", [2], 0, 8)

BROKEN = {
    "not JSON": (b"{nope", b"", "not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "not valid UTF-8"),
    "a list": (b"[1]", b"", "JSON object"),
    "nested for ever": (b"[" * 100_000, b"", "nested too deeply"),
    "a name twice": (b'{"a": {}, "a": {}}', b"", "'a' twice"),
    "an entry that is no object": ({"a": 3}, b"", "no dtype"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2]}}, b"", "data_offsets"),
    "a type that does not exist": ({"a": entry("Q9", [2], 0, 8)}, b"12345678", "'Q9'"),
    "a negative size": ({"a": entry("F32", [-2], 0, 8)}, b"12345678", "shape"),
    "true as a size": ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234", "shape"),
    "offsets the wrong way round": ({"a": entry("F32", [2], 8, 0)}, b"12345678", "range"),
    "offsets that do not fit the shape": ({"a": entry("F32", [3], 0, 8)}, b"12345678", "needs 12"),
    "a size beyond all memory": ({"a": entry("F32", [10**18, 10**18], 0, 8)}, b"12345678", "needs"),
    "two tensors in one place": ({"a": GOOD, "b": GOOD}, b"12345678", "overlaps"),
    "a hole": ({"a": GOOD, "b": entry("F32", [2], 16, 24)}, b"1" * 24, "no tensor"),
    "data beyond the end": ({"a": entry("F32", [4], 0, 16)}, b"12345678", "truncated"),
    "more data than described": ({"a": GOOD}, b"1" * 20, "12 bytes longer"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_header_is_one_sentence(tmp_path: Path, what: str) -> None:
    header, data, expected = BROKEN[what]
    write_raw(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(WeightFileError, match=r"bad\.safetensors") as caught:
        read_header(tmp_path / "bad.safetensors")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_cut_anywhere_is_called_truncated(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write_file(file, {"a": torch.ones(6), "b": torch.ones(2, 2)})
    whole = file.read_bytes()
    for length in (0, 5, 8, 30, len(whole) - 17, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(WeightFileError, match="truncated"):
            read_header(file)


def test_an_absurdly_long_header_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(WeightFileError, match="no safetensors file"):
        read_header(file)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, words in {"pipe": "not a regular file", "folder": "not a regular file", "none": "no such file"}.items():
        with pytest.raises(WeightFileError, match=words):
            read_header(tmp_path / name)


def test_a_storage_type_that_is_not_read_is_named_when_it_is_used(tmp_path: Path) -> None:
    write_raw(tmp_path / "x.safetensors", {"a": entry("F4", [4], 0, 2)}, b"12")
    tensor = read_header(tmp_path / "x.safetensors")["a"]
    with pytest.raises(WeightFileError, match="stored as F4"):
        _ = tensor.dtype
