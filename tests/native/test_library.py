"""The native library loads, fits and names what this CPU has; without it one sentence says what to do."""

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.errors import EngineError
from strata.native import library


@pytest.fixture(autouse=True)
def _fresh_load() -> Iterator[None]:
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def features_or_refusal() -> set[str]:
    """What the library found; none of an installation that was made without a compiler, which must say so."""
    if library.is_available():
        return set(library.cpu_features())
    with pytest.raises(EngineError, match="is missing"):
        library.cpu_features()
    return set()


def test_where_there_is_a_compiler_the_library_was_built() -> None:
    """The build falls back to no library in silence, and the library's own tests are skipped then: this one is not."""
    has_compiler = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
    assert library.is_available() or not has_compiler


def test_features_are_those_that_the_system_lists() -> None:
    found = features_or_refusal()
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split("flags", 1)[-1].split("\n", 1)[0].split()) if cpuinfo.exists() else set()
    names = {"sse4.1": "sse4_1", "avx2": "avx2", "fma": "fma", "avx512": "avx512bw", "avx512_vnni": "avx512_vnni"}
    if flags and library.is_available():
        assert {ours for ours, theirs in names.items() if theirs in flags} == found & set(names)


def test_avx512_parts_come_only_with_avx512() -> None:
    found = features_or_refusal()
    assert "avx512" in found or not {"avx512_vnni", "avx512_bf16"} & found


def test_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_library", lambda: None)
    assert not library.is_available()
    with pytest.raises(EngineError, match="install a C\\+\\+ compiler"):
        library.load()


def test_library_of_another_abi_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Function:
        restype: object = None

        def __call__(self) -> int:
            return library.ABI_VERSION + 1

    class Library:
        def __init__(self, path: str) -> None:
            self.strata_native_abi_version = Function()
            self.strata_cpu_features = Function()

    monkeypatch.setattr(library, "find_library", lambda: tmp_path / "lib.so")
    monkeypatch.setattr(ctypes, "CDLL", Library)
    with pytest.raises(EngineError, match="ABI version"):
        library.load()


def test_broken_library_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / library.LIBRARY_NAME
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library, "find_library", lambda: broken)
    with pytest.raises(EngineError, match="cannot be loaded"):
        library.load()
