"""A profile comes back as it was saved, is of one model, is never half a file, and no file is trusted."""

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.experts import routing_profile
from strata.experts.routing_profile import (
    HALF_LIFE,
    ProfiledModel,
    add_to_profile,
    load_profile,
    merged_heat,
    model_digest,
    profile_path,
    save_profile,
)

MODEL = ProfiledModel("qwen4/exp 30B", 3, 8, model_digest({"hidden_size": 8}, {"a.weight": (8, 8)}))
HEAT = np.arange(24, dtype=np.float64).reshape(3, 8) * 1.5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return profile_path(tmp_path / "cache" / "profiles", MODEL)


def test_what_was_saved_comes_back(path: Path) -> None:
    assert load_profile(path, MODEL).heat is None
    assert load_profile(path, MODEL).notice is None
    assert save_profile(path, MODEL, HEAT) is None
    assert save_profile(path, MODEL, HEAT + 1) is None  # over the first
    found = load_profile(path, MODEL)
    assert found.notice is None
    assert found.heat is not None
    assert np.array_equal(found.heat, HEAT + 1)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.name == f"qwen4-exp-30B-{MODEL.digest[:16]}.profile"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(MODEL, name="llama"), "its name is 'qwen4/exp 30B', not 'llama'"),
        (replace(MODEL, layers=6, experts=4), "its layers is '3', not '6'"),
        (replace(MODEL, digest="0"), "its config or tensors differ"),
    ],
)
def test_another_models_profile_is_refused_and_stays(path: Path, other: ProfiledModel, words: str) -> None:
    save_profile(path, MODEL, HEAT)
    before = path.read_bytes()
    found = load_profile(path, other)
    assert found.heat is None
    assert found.notice == f"{path} is a profile of another model: {words}; not used"
    said = save_profile(path, other, np.zeros((other.layers, other.experts)))
    assert said == f"{path} is a profile of another model and was left as it is"
    assert path.read_bytes() == before


def test_the_digest_tells_configs_and_tensors_apart() -> None:
    found = {
        model_digest({"a": 1}, {"x": (1, 2)}),
        model_digest({"a": 2}, {"x": (1, 2)}),
        model_digest({"a": 1}, {"x": (2, 1)}),
        model_digest({"a": 1}, {"y": (1, 2)}),
    }
    assert len(found) == 4
    assert model_digest({"a": 1, "b": 2}, {}) == model_digest({"b": 2, "a": 1}, {})


def test_a_file_that_is_no_profile_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    assert load_profile(path, MODEL).notice == f"{path} is no profile of experts; the profile is not used"
    assert save_profile(path, MODEL, HEAT) == f"{path} is no profile of experts; it was left as it is"
    assert path.read_text() == "mine\n"
    assert "is not a regular file" in (load_profile(tmp_path, MODEL).notice or "")


def test_a_full_disk_is_told_and_leaves_the_old_profile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(path, MODEL, HEAT)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = save_profile(path, MODEL, HEAT + 1)
    assert said == (
        f"the profile of experts {path} cannot be written: the disk has no room; the next start does without this run's"
    )
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    found = load_profile(path, MODEL).heat
    assert found is not None
    assert np.array_equal(found, HEAT)


def test_runs_that_end_at_once_are_added_up(path: Path) -> None:
    def add() -> None:
        for _ in range(8):
            assert add_to_profile(path, MODEL, np.ones((3, 8))) is None

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = load_profile(path, MODEL).heat
    assert found is not None
    assert np.allclose(found, 32, rtol=0.01)  # a little has faded
    assert {each.name for each in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}


def test_what_was_damaged_is_replaced_and_what_is_no_profile_stays(path: Path) -> None:
    add_to_profile(path, MODEL, HEAT)
    line, _, _ = path.read_bytes().partition(b"\n")
    path.write_bytes(line + b"\n")
    assert add_to_profile(path, MODEL, HEAT) is None
    found = load_profile(path, MODEL).heat
    assert found is not None
    assert np.array_equal(found, HEAT)
    path.write_text("mine\n")
    assert "it was left as it is" in (add_to_profile(path, MODEL, HEAT) or "")


def test_a_run_that_never_lets_go_is_told_and_not_waited_for_any_longer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing_profile, "LOCK_S", 0.05)
    add_to_profile(path, MODEL, HEAT)
    with routing_profile._locked(path.parent / f".{path.name}.lock"):
        said = add_to_profile(path, MODEL, HEAT)
    assert said is not None
    assert "another program has held its lock for 0.05 s" in said
    assert add_to_profile(path, MODEL, HEAT) is None


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for save in (save_profile, add_to_profile):
        assert "cannot be written" in (save(tmp_path / "file" / "a.profile", MODEL, HEAT) or "")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", "numpy", "its header does not say format"),
        ("layers", 3.0, "layers is '3.0'; it must be of type int"),
        ("name", None, "name is 'None'"),
        ("experts", True, "experts is 'True'"),
    ],
)
def test_wrong_headers_are_named(path: Path, field: str, value: object, words: str) -> None:
    save_profile(path, MODEL, HEAT)
    line, _, values = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps(json.loads(line) | {field: value}).encode() + b"\n" + values)
    found = load_profile(path, MODEL)
    assert found.heat is None
    assert words in (found.notice or "")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e30])
def test_numbers_that_count_nothing_are_refused_and_replaced(path: Path, value: float) -> None:
    save_profile(path, MODEL, HEAT)
    line, _, _ = path.read_bytes().partition(b"\n")
    path.write_bytes(line + b"\n" + np.full(24, value, "<f4").tobytes())
    assert "numbers that count nothing" in (load_profile(path, MODEL).notice or "")
    assert save_profile(path, MODEL, HEAT) is None
    assert load_profile(path, MODEL).heat is not None


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.binary(max_size=3), st.booleans())
def test_a_changed_or_shortened_file_gives_a_notice_or_a_profile(path: Path, at: int, put: bytes, is_cut: bool) -> None:
    path.unlink(missing_ok=True)
    save_profile(path, MODEL, HEAT)
    data = path.read_bytes()
    path.write_bytes(data[:at] if is_cut else data[:at] + put + data[at + len(put) :])
    found = load_profile(path, MODEL)
    assert (found.heat is None) == (found.notice is not None)
    if found.heat is not None:
        assert found.heat.shape == HEAT.shape
        assert np.all(np.isfinite(found.heat) & (found.heat >= 0))


def test_old_habits_fade_by_what_a_run_asked_and_not_by_starting() -> None:
    assert np.array_equal(merged_heat(None, HEAT), HEAT)
    assert np.array_equal(merged_heat(HEAT, np.zeros((3, 8))), HEAT)
    new = np.full((3, 8), HALF_LIFE / 8)
    assert np.allclose(merged_heat(HEAT, new), HEAT / 2 + new)


def test_heat_of_another_shape_is_a_mistake(path: Path) -> None:
    with pytest.raises(ValueError, match="3 layers of 8 experts"):
        save_profile(path, MODEL, HEAT[:2])
