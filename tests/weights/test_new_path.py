"""Where a model may be written: a new name in a folder that is there and lets files be made."""

from pathlib import Path

import pytest

from strata.errors import StrataError
from strata.weights.gguf_writer import write_gguf
from strata.weights.new_path import folder_of_new
from strata.weights.writer import new_directory


def test_a_new_name_has_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_of_new(tmp_path / "new") == tmp_path
    monkeypatch.chdir(tmp_path)
    assert folder_of_new(Path("new")) == tmp_path


def test_what_is_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, words in {
        "file": "exists already",
        "dangling": "exists already",
        "file/out": "file is no folder",
        "dangling/out": "dangling is no folder",
        "none/out": r"there is no folder .*none; make it first",
    }.items():
        with pytest.raises(StrataError, match=words):
            folder_of_new(tmp_path / name)


def test_missing_folders_are_not_made(tmp_path: Path) -> None:
    with pytest.raises(StrataError, match="there is no folder"):
        write_gguf(tmp_path / "none" / "m.gguf", [], [], lambda *_: None)
    with pytest.raises(StrataError, match="there is no folder"), new_directory(tmp_path / "none" / "out", 1):
        raise AssertionError("the directory was given out")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_takes_no_file_is_the_reason_and_not_its_room() -> None:
    with pytest.raises(StrataError, match=r"nothing can be written in /proc: .*; give another place"):
        write_gguf(Path("/proc/x.gguf"), [], [], lambda *_: None)
    with pytest.raises(StrataError, match="nothing can be written in /proc: "), new_directory(Path("/proc/x"), 1):
        raise AssertionError("the directory was given out")
