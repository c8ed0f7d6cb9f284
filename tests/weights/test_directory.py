"""A model directory that is missing something, or may not be read, is one sentence that names it."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from strata.errors import ConfigError, ModelError, WeightFileError
from strata.weights.directory import read_config, read_stored_tensors
from strata.weights.json_files import load_json_object
from tests.weights.model_files import single, write_file, write_index, write_model

A, B = {"a.weight": torch.ones(2, 2)}, {"b.weight": torch.ones(3)}
SHARDS = {"model-00001-of-00002.safetensors": A, "model-00002-of-00002.safetensors": B}
LAST = "model-00002-of-00002.safetensors"


def test_single_file_and_shards_are_read(tmp_path: Path) -> None:
    one = read_stored_tensors(single(tmp_path / "one", A | B))
    two = read_stored_tensors(write_model(tmp_path / "two", SHARDS))
    assert {name: item.shape for name, item in one.items()} == {name: item.shape for name, item in two.items()}
    assert two["b.weight"].file.name == LAST


def test_files_behind_links_are_read_as_in_the_hubs_cache(tmp_path: Path) -> None:
    write_model(tmp_path / "blobs", SHARDS)
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(Path("..") / "blobs" / file.name)
    assert set(read_stored_tensors(tmp_path / "snapshot")) == {"a.weight", "b.weight"}


def remove_shard(model: Path) -> None:
    (model / LAST).unlink()


def cut_shard(model: Path) -> None:
    (model / LAST).write_bytes((model / LAST).read_bytes()[:-3])


def lose_tensor(model: Path) -> None:
    write_file(model / LAST, {"c.weight": torch.ones(1)})


def repeat_tensor(model: Path) -> None:
    write_file(model / LAST, A | B)


def swap_index(model: Path) -> None:
    write_index(model, {"a.weight": LAST, "b.weight": next(iter(SHARDS))})


def index_of(*shard_names: str) -> Callable[[Path], None]:
    return lambda model: write_index(model, {f"t{i}": name for i, name in enumerate(shard_names)})


def write_text(name: str, data: bytes) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        (model / name).write_bytes(data)

    return change


INDEX = "model.safetensors.index.json"
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a missing shard": (remove_shard, f"shard {LAST} is missing from .*{INDEX} names it"),
    "a truncated shard": (cut_shard, f"{LAST} is truncated"),
    "a tensor that its shard lacks": (lose_tensor, "for tensor b.weight, which .* does not hold"),
    "a tensor in two shards": (repeat_tensor, "a.weight is in two files"),
    "a tensor in another shard": (swap_index, "it is in model-00001"),
    "a shard above the directory": (index_of("../other/x.safetensors"), "only a plain file name"),
    "a shard by absolute path": (index_of("/etc/passwd"), "only a plain file name"),
    "a shard called ..": (index_of(".."), "only a plain file name"),
    "a shard with a zero byte": (index_of("a\0b"), "only a plain file name"),
    "a shard that is a number": (write_text(INDEX, b'{"weight_map": {"a": 3}}'), "only a plain file name"),
    "a name too long for any file": (index_of("x" * 5000), "cannot be read"),
    "an index without a map": (write_text(INDEX, b"{}"), "no weight_map"),
    "an index that is not JSON": (write_text(INDEX, b"{"), "not valid JSON"),
    "an index in another coding": (write_text(INDEX, b'{"\xe4": 1}'), "not valid UTF-8"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_set_of_shards_is_one_sentence(tmp_path: Path, what: str) -> None:
    change, words = BROKEN[what]
    model = write_model(tmp_path / "m", SHARDS)
    change(model)
    with pytest.raises(ModelError, match=words) as caught:
        read_stored_tensors(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model-00001-of-00002.safetensors", "no model.safetensors.index.json"),
        ("model.gguf", "GGUF file: give its own path"),
        ("pytorch_model.bin", "pickled weights"),
        ("model.safetensors.incomplete", "not finished"),
        ("README.md", "neither model.safetensors nor"),
    ],
)
def test_without_weights_the_sentence_says_what_is_there_instead(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(WeightFileError, match=words):
        read_stored_tensors(tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "has no config.json"),
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1, 2]", "must hold a JSON object, not a list"),
        (b'{"name": "\xff"}', "not valid UTF-8: byte 10 is 0xff"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"a":' * 50_000, "nested too deeply"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_sentence(tmp_path: Path, data: bytes | None, words: str) -> None:
    if data is not None:
        (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ConfigError, match=words) as caught:
        read_config(tmp_path)
    assert "config.json" in str(caught.value)


def test_paths_that_are_no_model_directory(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for path, words in (
        (tmp_path / "none", "there is no model directory"),
        (Path("someone/some-model"), "hf download someone/some-model"),
        (tmp_path / "model.gguf", "is a file; .*GGUF"),
        (tmp_path / "model.gguf" / "x", "cannot be read: not a directory"),
    ):
        with pytest.raises(ModelError, match=words):
            read_config(path)


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Root may read everything, so a test of permissions gives its rights up for a moment."""
    if os.getuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_a_directory_without_permission_is_one_sentence(tmp_path: Path, mode: int) -> None:
    model = write_model(tmp_path / "m", SHARDS)
    model.chmod(mode)
    with as_somebody_else():
        for read in (read_config, read_stored_tensors):
            with pytest.raises(ModelError, match="cannot be read: permission denied"):
                read(model)
    model.chmod(0o755)


def test_a_file_that_is_too_long_for_its_kind_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.weights.json_files.MAX_JSON_BYTES", 10)
    (tmp_path / "config.json").write_text(json.dumps({"a": "b" * 20}))
    with pytest.raises(ConfigError, match="at most 10"):
        load_json_object(tmp_path / "config.json", ConfigError)
