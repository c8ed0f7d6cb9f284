"""Facts that `strata doctor` shows are those of this installation."""

import platform
from pathlib import Path

import pytest
import torch

from strata.bench.doctor import examine, read_native_paths, read_versions
from strata.native import isa, library


def test_versions_of_what_computes() -> None:
    found = read_versions()
    assert (found["python"], found["torch"]) == (platform.python_version(), torch.__version__)
    assert found["C++ library"] == (f"ABI {library.ABI_VERSION}" if library.is_available() else None)


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_the_path_in_use_is_one_of_those_there_are() -> None:
    with isa.forced("scalar"):
        assert read_native_paths().in_use == "scalar"
    found = read_native_paths()
    assert found.in_use in found.available
    assert found.problem is None


def test_a_missing_library_is_told_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_library", lambda: None)
    library.load.cache_clear()
    found = read_native_paths()
    library.load.cache_clear()
    assert found.in_use is None
    assert "is missing" in str(found.problem)


def test_without_time_nothing_is_measured_and_the_facts_are_there(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "rows.cubin").write_bytes(bytes(100))
    found = examine((1,), -1.0, tmp_path)
    assert found.hardware.cpu.logical_cores >= 1
    assert (found.kernel_cache.names, found.kernel_cache.total_bytes) == (("rows",), 100)
    assert found.ceilings.card is None
    assert not found.ceilings.ram_gb_per_s
