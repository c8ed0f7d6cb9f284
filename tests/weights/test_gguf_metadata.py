"""Metadata getters: what they give, and the one sentence when a key is missing or of another kind."""

from pathlib import Path
from typing import Any

import pytest

from strata.errors import ConfigError
from strata.weights.gguf import read_file
from strata.weights.gguf_metadata import Metadata
from strata.weights.gguf_writer import Pair
from tests.weights.gguf_files import write

PAIRS = [
    Pair("n", "u32", 7), Pair("minus", "i64", -1), Pair("x", "f32", 0.25), Pair("nan", "f64", float("nan")),
    Pair("yes", "bool", True), Pair("word", "text", "äöü"), Pair("words", "[text]", ["", "b", "🎉"]),
    Pair("numbers", "[u64]", [1, 2**63]), Pair("flags", "[bool]", [True, False]), Pair("floats", "[f32]", [1.5]),
]  # fmt: skip


@pytest.fixture
def metadata(tmp_path: Path) -> Metadata:
    return read_file(write(tmp_path / "m.gguf", PAIRS)).metadata


def test_every_kind_of_value_comes_back(metadata: Metadata) -> None:
    assert {key: metadata[key] for key in metadata if key != "nan"} == {
        pair.key: pair.value for pair in PAIRS if pair.key != "nan"
    }
    assert metadata.text("word") == "äöü"
    assert metadata.integer("n") == 7
    assert metadata.number("x") == 0.25
    assert metadata.flag("yes") is True
    assert metadata.integers("numbers") == [1, 2**63]
    assert metadata.texts("words") == ["", "b", "🎉"]
    assert metadata.count("words") == 3
    assert metadata.count("n") == metadata.count("none") == 0
    assert metadata.integer("none", 5) == 5


@pytest.mark.parametrize(
    ("getter", "key", "words"),
    [
        ("integer", "none", "no metadata key none"),
        ("integer", "minus", "is -1; a whole number of at least 0"),
        ("integer", "yes", "is True; a whole number"),
        ("integer", "x", "a whole number"),
        ("number", "nan", "a finite number"),
        ("text", "words", "is an array; a string works"),
        ("integers", "words", "a list of whole numbers"),
        ("integers", "floats", "a list of whole numbers"),
        ("texts", "numbers", "a list of strings"),
        ("flag", "n", "true or false"),
    ],
)
def test_a_key_of_another_kind_is_named(metadata: Metadata, getter: str, key: str, words: str) -> None:
    reader: Any = getattr(metadata, getter)
    with pytest.raises(ConfigError, match=words):
        reader(key)
