"""The folder of compiled kernels is read for what it holds, and Triton is told to use it."""

import subprocess
import sys
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


KEY_BEHIND = """
import importlib
from pathlib import Path
from strata.kernels.compiled import use_cache
first = importlib.import_module("strata.kernels.FIRST.triton")
use_cache(Path("FOLDER"))
[hash(value) for name, value in vars(first).items() if name.endswith("_kernel")]
from strata.kernels.packed_rows.triton import packed_rows_kernel
print(packed_rows_kernel.cache_key)
"""


def test_a_kernels_key_does_not_depend_on_what_a_process_launches_first(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = KEY_BEHIND.replace("FOLDER", str(tmp_path / "kernels"))
    commands = [[sys.executable, "-c", code.replace("FIRST", first)] for first in ("packed_rows", "residual_streams")]
    keys = {subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in commands}
    assert len(keys) == 1
