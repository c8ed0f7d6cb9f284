"""A file for a command's numbers: refused before anything is measured, and named if it cannot be written at the end."""

import os
from pathlib import Path

import pytest

from strata.cli.app import run
from strata.cli.report_file import check_report_file, write_report
from strata.errors import EngineError, SettingsError

COMMANDS = (
    ("bench", "decode", "--tiny"),
    ("bench", "kernels", "--cpu"),
    ("bench", "peer", "model.gguf", "--cpu"),
    ("bench", "serve", "http://127.0.0.1:9"),
)


def test_a_place_that_holds_a_file_is_taken_and_written(tmp_path: Path) -> None:
    for file in (tmp_path / "new.json", tmp_path / "new.json"):
        check_report_file(file)
        write_report(file, "{}")
        assert file.read_text() == "{}\n"
    check_report_file(None)
    write_report(None, "{}")


def test_other_places_are_refused_with_what_would_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="is a folder: give the name of a file"):
        check_report_file(tmp_path)
    with pytest.raises(SettingsError, match="nosuch is no folder: make it or give another"):
        check_report_file(tmp_path / "nosuch" / "x.json")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SettingsError, match="may not be written by this user"):
        check_report_file(tmp_path / "x.json")


def test_a_full_disk_is_named_with_the_file() -> None:
    with pytest.raises(EngineError, match=r"/dev/full could not be written \(No space left on device\); the numbers"):
        write_report(Path("/dev/full"), "{}")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[1])
def test_every_bench_looks_at_its_place_first(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--json", str(tmp_path / "nosuch" / "x.json")]) == 2
    assert "nosuch is no folder" in capsys.readouterr().err
    assert run([*command, "--json", ""]) == 2
    assert "the path is empty" in capsys.readouterr().err
