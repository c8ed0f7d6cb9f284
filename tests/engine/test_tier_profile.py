"""A profile is found, read, added to and written once a model is gone; what is wrong with it ends nothing."""

import logging
from pathlib import Path

import numpy as np
import pytest

from strata.engine.tier_profile import OpenProfile, open_profile
from tests.gpu.tiny_models import tiny_model


def opened(folder: Path, file: str | None = None, family: str = "qwen3_moe") -> OpenProfile:
    tiny = tiny_model(family, "none")
    return open_profile(tiny.source, tiny.names, file, folder)


def test_what_was_counted_is_there_at_the_next_start(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert (first.heat, first.found.notice, first.path.parent) == (None, None, tmp_path)
    shape = first.model.layers, first.model.experts
    assert shape == (2, 16)
    heat = np.random.default_rng(0).integers(0, 9, shape).astype(np.float64)
    assert opened(tmp_path).heat is None
    first.save(heat)
    second = opened(tmp_path)
    assert second.heat is not None
    assert np.allclose(second.heat, heat)
    second.save(heat)
    third = opened(tmp_path)
    assert third.heat is not None
    assert np.allclose(third.heat, 2 * heat, rtol=1e-3)


def test_two_engines_of_one_model_are_added_up(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    heat = np.ones((2, 16))
    first.save(heat)
    second.save(2 * heat)
    found = opened(tmp_path).heat
    assert found is not None
    assert np.allclose(found, 3 * heat, rtol=1e-3)


def test_a_run_that_asked_for_nothing_writes_nothing(tmp_path: Path) -> None:
    found = opened(tmp_path)
    found.save(np.zeros((found.model.layers, found.model.experts)))
    assert not found.path.exists()


def test_another_models_profile_is_told_not_used_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "profile"
    first = opened(tmp_path, str(file))
    first.save(np.ones((2, 16)))
    kept = file.read_bytes()
    other = opened(tmp_path, str(file), "qwen4_exp")
    assert other.heat is None
    assert other.found.notice is not None
    assert "is a profile of another model" in other.found.notice
    with caplog.at_level(logging.WARNING, "strata.experts"):
        other.save(np.ones((other.model.layers, other.model.experts)))
    assert "was left as it is" in caplog.text
    assert file.read_bytes() == kept
