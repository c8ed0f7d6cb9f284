"""A written directory is read back by the format's own reader, is whole or absent, and minds the disk."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from strata.errors import StrataError
from strata.weights import writer
from strata.weights.directory import read_stored_tensors
from strata.weights.writer import PlannedTensor, cut_into_shards, new_directory, write_weights

TENSORS = {
    "a": torch.arange(12, dtype=torch.float32).view(3, 4),
    "b": torch.ones(5, dtype=torch.bfloat16),
    "c": torch.tensor([1, -2]),
    "d": torch.zeros(2, 2).to(torch.float8_e4m3fn),
}


def plan(tensors: dict[str, torch.Tensor]) -> list[PlannedTensor]:
    def in_two_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        yield tensor.reshape(-1)[:1]
        yield tensor.reshape(-1)[1:]

    return [
        PlannedTensor(name, tensor.dtype, tuple(tensor.shape), lambda tensor=tensor: in_two_parts(tensor))
        for name, tensor in tensors.items()
    ]


@pytest.mark.parametrize("shard_bytes", [1, 50, 60, 1 << 20])
def test_the_formats_own_reader_reads_what_was_written(tmp_path: Path, shard_bytes: int) -> None:
    steps: list[int] = []
    write_weights(tmp_path, plan(TENSORS), shard_bytes, lambda count, name: steps.append(count))
    assert sum(steps) == sum(tensor.nbytes for tensor in TENSORS.values())
    found: dict[str, torch.Tensor] = {}
    for file in sorted(tmp_path.glob("*.safetensors")):
        found |= load_file(file)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].float(), tensor.float())
    assert read_stored_tensors(tmp_path).keys() == TENSORS.keys()


def test_shards_hold_at_most_what_was_asked_and_the_index_says_where(tmp_path: Path) -> None:
    assert [[t.name for t in shard] for shard in cut_into_shards(plan(TENSORS), 58)] == [["a", "b"], ["c", "d"]]
    write_weights(tmp_path, plan(TENSORS), 58, lambda count, name: None)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in TENSORS.values())
    assert index["weight_map"]["c"] == "model-00002-of-00002.safetensors"


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    with new_directory(tmp_path / "out", 10) as directory:
        (directory / "x").write_text("y")
        assert not (tmp_path / "out").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "x").read_text() == "y"


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("x"), OSError(errno.EIO, "Input/output error")])
def test_an_error_on_the_way_leaves_nothing(tmp_path: Path, failure: BaseException) -> None:
    expected = StrataError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected), new_directory(tmp_path / "out", 10) as directory:
        (directory / "x").write_text("y")
        raise failure
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_on_the_way_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    words = r"has no room: the model takes 10\.0 MiB"
    with pytest.raises(StrataError, match=words) as caught, new_directory(tmp_path / "out", 10 << 20) as directory:
        (directory / "x").write_text("y")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "disk_free_bytes", lambda path: 100 << 20)
    with pytest.raises(StrataError, match=r"50\.0 MiB, 100\.0 MiB are free"), new_directory(tmp_path / "out", 50 << 20):
        raise AssertionError("the directory was given out")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    for name, words in {".": "exists already", "dangling": "exists already", "file/out": "cannot be written"}.items():
        with pytest.raises(StrataError, match=words), new_directory(tmp_path / name, 1):
            raise AssertionError("the directory was given out")
