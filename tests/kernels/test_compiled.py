"""The folder of compiled kernels is read for what it holds, and Triton is told to use it."""

from pathlib import Path

import pytest

from strata.kernels.compiled import cached_kernels, use_cache


def test_a_folder_is_counted(tmp_path: Path) -> None:
    for key, name, size in (("a", "gates_kernel", 100), ("b", "gates_kernel", 50), ("c", "attend_kernel", 7)):
        folder = tmp_path / key
        folder.mkdir()
        (folder / f"{name}.cubin").write_bytes(bytes(size))
        (folder / f"{name}.json").write_text("{}")
    found = cached_kernels(tmp_path)
    assert found.names == ("attend_kernel", "gates_kernel", "gates_kernel")
    assert found.total_bytes == 157 + 3 * 2
    assert cached_kernels(tmp_path / "nothing").names == ()


def test_triton_keeps_its_files_where_it_is_told(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    before = triton.knobs.cache.dir
    try:
        use_cache(tmp_path / "kernels")
        assert triton.knobs.cache.dir == str(tmp_path / "kernels")
        assert (tmp_path / "kernels").is_dir()
    finally:
        triton.knobs.cache.dir = before
