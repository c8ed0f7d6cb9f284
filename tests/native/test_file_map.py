"""A mapped file and its descriptor: where a view lies in the file, and that both end together."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from strata.native.file_map import FileMap, file_place, map_of, path_of, read_ahead


@pytest.fixture
def opened(tmp_path: Path) -> FileMap:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 100)
    return FileMap(os.open(tmp_path / "file", os.O_RDONLY), tmp_path / "file")


def test_views_know_where_they_lie(opened: FileMap) -> None:
    flat = np.frombuffer(opened, np.uint8)
    view = flat[512:1024].reshape(4, -1)[1:, 5:]
    assert map_of(view) == (opened, 512 + 128 + 5)
    assert file_place(view) == (opened.descriptor, 512 + 128 + 5)
    assert os.pread(opened.descriptor, 2, 512 + 128 + 5) == view[0, :2].tobytes()
    assert path_of(view) == opened.path
    assert map_of(view.copy()) is path_of(view.copy()) is None


def test_another_map_has_no_descriptor_and_no_path() -> None:
    view = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)
    assert file_place(view) is path_of(view) is None


def test_reading_ahead_is_asked_for_the_span_of_a_view(opened: FileMap, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: asked.append(arguments))
    flat = np.frombuffer(opened, np.uint8)
    read_ahead(flat[1000:2000].reshape(10, 100)[2:5, :7])
    read_ahead(flat[:0])
    read_ahead(np.zeros(10, np.uint8))
    assert asked == [(opened.descriptor, 1200, 207, os.POSIX_FADV_WILLNEED)]


def test_the_descriptor_is_closed_with_the_last_view(opened: FileMap) -> None:
    view = np.frombuffer(FileMap(os.dup(opened.descriptor), opened.path), np.uint8)
    place = file_place(view)
    assert place is not None
    os.fstat(place[0])
    del view
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(place[0])
