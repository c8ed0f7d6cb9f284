"""What a model's makers recommend: the numbers of its files, and nothing that does not work."""

import json
from pathlib import Path

import pytest

import strata.models_shipped
from strata.errors import ModelError
from strata.text.recommended_sampling import recommended_in, recommended_sampling_of
from strata.weights.gguf import open_gguf
from strata.weights.gguf_source import GgufSource
from strata.weights.gguf_writer import Pair
from tests.weights.gguf_files import ARCHITECTURE, write


class Opened:
    """As much of a model's source as is looked at."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory


def test_numbers_are_taken_and_other_fields_are_not() -> None:
    fields = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True, "eos_token_id": [1], "max_length": 9}
    assert recommended_in(fields) == ({"temperature": 0.6, "top_k": 20, "top_p": 0.95}, ())


def test_a_file_that_says_not_to_sample_recommends_nothing() -> None:
    assert recommended_in({"do_sample": False, "temperature": 0.6}) == ({}, ())


@pytest.mark.parametrize("wrong", ["hot", -1, True, [0.5], 1e9])
def test_what_does_not_work_is_left_out_and_said(wrong: object) -> None:
    found, (notice,) = recommended_in({"temperature": wrong, "top_p": 0.9})
    assert found == {"top_p": 0.9}
    assert "without temperature" in notice and repr(wrong) in notice


def test_a_gguf_file_has_keys_of_its_own(tmp_path: Path) -> None:
    pairs = [Pair("general.sampling.temp", "f32", 0.5), Pair("general.sampling.top_k", "i32", 20)]
    model = open_gguf(write(tmp_path / "a.gguf", [ARCHITECTURE, *pairs]))
    assert recommended_sampling_of(GgufSource(model, {}, {}, [])) == ({"temperature": 0.5, "top_k": 20}, ())


def test_a_directory_without_the_file_recommends_nothing_and_a_broken_file_is_an_error(tmp_path: Path) -> None:
    assert recommended_sampling_of(Opened(tmp_path)) == ({}, ())  # type: ignore[arg-type]
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_k": 7}))
    assert recommended_sampling_of(Opened(tmp_path)) == ({"top_k": 7}, ())  # type: ignore[arg-type]
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        recommended_sampling_of(Opened(tmp_path))  # type: ignore[arg-type]


def test_the_shipped_model_recommends_nothing() -> None:
    assert recommended_sampling_of(Opened(strata.models_shipped.default_path())) == ({}, ())  # type: ignore[arg-type]
