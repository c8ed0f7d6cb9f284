"""Logits of GGUF files against what llama.cpp said of the same files; all of them, and SmolLM2's texts: make oracle."""

from pathlib import Path

import numpy as np
import pytest

from tests.oracle.llama_cpp import files, rows
from tests.oracle.llama_cpp.__main__ import is_kept
from tests.oracle.llama_cpp.greedy import read_record
from tests.oracle.llama_cpp.kept import agree, keep
from tests.oracle.llama_cpp.prompts import PROMPTS

IN_A_TEST = [spec for spec in files.ALL if spec.family or spec.storage == "Q8_0"]


@pytest.mark.parametrize("spec", IN_A_TEST, ids=lambda spec: spec.name)
def test_logits_are_those_of_llama_cpp(spec: files.FileSpec, tmp_path: Path) -> None:
    for found in rows.measure(files.make(spec, tmp_path), spec, rows.read_record(spec)):
        if found is not None:
            assert is_kept(spec, found), found


def test_every_file_has_a_record() -> None:
    missing = [spec.name for spec in files.ALL if not rows.record_path(spec).is_file()]
    assert not missing, f"no record of {missing}: {rows.RENEW}"
    assert [text.name for text in read_record()] == [prompt.name for prompt in PROMPTS]


def test_records_stay_small() -> None:
    assert sum(file.stat().st_size for file in rows.FIXTURES.iterdir()) < 300_000


def test_a_record_tells_how_far_logits_are() -> None:
    logits = np.random.default_rng(0).normal(0.0, 3.0, (50, 90)).astype(np.float32)
    whole, part = keep(logits, 90), keep(logits, 8)
    for kept in (whole, part):
        same = agree(kept, logits)
        assert abs(same.mean_kl) < 1e-4
        assert same.same_best > 0.95
    moved = logits + np.random.default_rng(1).normal(0.0, 0.3, logits.shape).astype(np.float32)
    exact = agree(whole, moved).mean_kl
    assert 0.01 < agree(part, moved).mean_kl <= exact + 1e-4
    assert agree(whole, -logits).same_best < 0.1


def test_a_wrong_file_is_noticed(tmp_path: Path) -> None:
    """The record of one random model does not fit another's logits."""
    ours = rows.our_logits(files.make(files.RANDOM[3], tmp_path), files.RANDOM[3])[0]
    assert agree(rows.read_record(files.RANDOM[4]), ours).mean_kl > 0.05
