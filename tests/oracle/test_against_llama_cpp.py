"""Logits of GGUF files against what llama.cpp said of the same files; all of them, and SmolLM2's texts: make oracle."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strata.native import library
from tests.oracle.llama_cpp import comparison, files, rows
from tests.oracle.llama_cpp.files import Weights
from tests.oracle.llama_cpp.greedy import read_record
from tests.oracle.llama_cpp.kept import Agreement, agree, keep, margins
from tests.oracle.llama_cpp.prompts import PROMPTS

IN_A_TEST = [spec for spec in files.MADE if spec.weights is not Weights.SHIPPED or spec.storage == "Q8_0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the random models lie, each made once."""
    return tmp_path_factory.mktemp("oracle")


@pytest.mark.parametrize("spec", IN_A_TEST, ids=lambda spec: spec.name)
def test_logits_are_those_of_llama_cpp(spec: files.FileSpec, folder: Path) -> None:
    found = comparison.compare(files.make(spec, folder), spec, rows.read_record(spec))
    assert comparison.problems(spec, found) == []
    assert library.is_available() == (found.exact_windows is not None)


def test_every_file_has_a_record() -> None:
    missing = [spec.name for spec in files.ALL if not rows.record_path(spec).is_file()]
    assert not missing, f"no record of {missing}: {rows.RENEW}"
    unknown = {file.stem for file in rows.FIXTURES.glob("*.npz")} - {spec.name for spec in files.ALL}
    assert not unknown
    assert [text.name for text in read_record()] == [prompt.name for prompt in PROMPTS]


def test_records_stay_small() -> None:
    assert sum(file.stat().st_size for file in rows.FIXTURES.iterdir()) < 450_000


def test_a_record_tells_how_far_logits_are() -> None:
    logits = np.random.default_rng(0).normal(0.0, 3.0, (50, 90)).astype(np.float32)
    whole, part = keep(logits, 90), keep(logits, 8)
    for kept in (whole, part):
        same = agree(kept, logits)
        assert abs(same.mean_kl) < 1e-4
        assert same.same_best > 0.95
    assert 0.0 <= agree(whole, logits).median_kl < comparison.ROUNDING_OF_RECORD
    moved = logits + np.random.default_rng(1).normal(0.0, 0.3, logits.shape).astype(np.float32)
    exact = agree(whole, moved).mean_kl
    assert 0.01 < agree(part, moved).mean_kl <= exact + 1e-4
    assert agree(whole, -logits).same_best < 0.1


def test_rows_with_other_experts_are_counted_apart() -> None:
    logits = np.random.default_rng(0).normal(0.0, 1.0, (4, 30))
    moved = logits.copy()
    moved[1, 0] += 5.0
    flipped = np.array([[False, True, False, False], [False, True, False, False]])
    found = agree(keep(logits, 30), moved, flipped)
    assert (found.flips, found.unflipped_rows) == (2, 3)
    assert found.widest_parting == pytest.approx(margins(keep(logits, 30))[1])
    assert found.unflipped_kl < 1e-7 < found.mean_kl


def test_a_wrong_file_is_noticed(folder: Path) -> None:
    """The record of one random model does not fit another's logits, even where its logits hardly differ."""
    spec, other = files.FRESH[11], files.FRESH[16]
    found = comparison.compare(files.make(spec, folder), spec, rows.read_record(other))
    assert found.theirs_read.mean_kl > comparison.MEAN_KL
    assert comparison.problems(spec, found)


def test_windows_that_are_farther_than_llama_cpp_are_noticed() -> None:
    near = Agreement(100, 1.0, 90, 1.0, 0.1, 1e-4, 1e-4, 1e-3, 0, 100, 1e-4)
    found = comparison.Comparison(near, near, near, near)
    spec = files.SHIPPED[0]
    assert comparison.problems(spec, found) == []
    published = replace(near, widest_parting=0.6)
    assert comparison.problems(spec, replace(found, theirs_windows=published)) == []
    assert len(comparison.problems(files.SMOLLM, replace(found, theirs_windows=published))) == 1
    for changed, words in (
        ({"exact_windows": replace(near, median_kl=2e-4)}, "llama.cpp 1.0e-04"),
        ({"exact_windows": replace(near, mean_kl=3e-3)}, "from the exact road, the limit is 0.002"),
        ({"theirs_exact": replace(near, mean_kl=3e-3)}, "the exact road is 3.0e-03 from llama.cpp"),
        ({"theirs_windows": replace(near, mean_kl=3e-3)}, "windows are 3.0e-03 from llama.cpp"),
        ({"theirs_read": replace(near, same_clear=0.98)}, "llama.cpp's token in 98.0 %"),
    ):
        assert [words in said for said in comparison.problems(spec, replace(found, **changed))] == [True]
