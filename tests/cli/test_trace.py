"""`strata trace`: record, replay, synth; what is wrong is one sentence, and nothing half-written is left."""

import io
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from strata.bench import routing
from strata.cli import trace as command
from strata.cli.app import run
from strata.experts.trace import load_trace, save_trace
from strata.types import ProgressCallback
from tests.house.source_tree import ROOT

SMALL = ["--layers", "3", "--experts", "16", "--experts-per-row", "4", "--windows", "120", "--blob-bytes", "1000"]


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    file = tmp_path / "drawn.trace"
    assert run(["trace", "synth", str(file), *SMALL]) == 0
    return file


def test_a_recording_is_written_and_replayed(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "talk.trace", tmp_path / "report.json"
    arguments = ["--model", str(tiny_model), "--max-tokens", "12", "--out", str(out)]
    assert run(["trace", "record", "What does harbour mean?", "And ship?", *arguments]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "talk.trace" in said.err
    assert "of 2 conversations, 22 of them decoded; 4 layers of" in said.err
    assert load_trace(out).model == "tiny"
    assert run(["trace", "replay", str(out), "--percent", "50", "--percent", "100", "--json", str(report)]) == 0
    shown = capsys.readouterr().out
    assert "11 windows judged; profile: the first 11 windows" in shown
    half, everything = json.loads(report.read_text())["sizes"]
    assert everything["adaptive"]["hit_rate"] == everything["belady"]["hit_rate"] == 1.0
    assert half["seats"] * 2 == everything["seats"]
    assert half["belady"]["hits"] >= half["lru"]["hits"]


def test_a_prompt_comes_from_stdin(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello harbour\n")))
    files = tmp_path / "piped.trace", tmp_path / "said.trace"
    for prompt, out in zip(("-", "hello harbour"), files, strict=True):
        arguments = ["--model", str(tiny_model), "--max-tokens", "3", "--raw", "--out", str(out)]
        assert run(["trace", "record", prompt, *arguments]) == 0
    assert len(load_trace(files[0]).steps) == len(load_trace(files[1]).steps) + 1  # --raw keeps the line feed


def test_a_drawn_trace_is_the_same_every_time(drawn: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again.trace", tmp_path / "other.trace"
    assert run(["trace", "synth", str(again), *SMALL]) == 0
    assert run(["trace", "synth", str(other), *SMALL, "--seed", "1", "--routing", "uniform"]) == 0
    assert again.read_bytes() == drawn.read_bytes()
    assert load_trace(other).model == "drawn, uniform"


def test_conversations_share_windows(tmp_path: Path) -> None:
    file = tmp_path / "four.trace"
    assert run(["trace", "synth", str(file), *SMALL, "--conversations", "4"]) == 0
    trace = load_trace(file)
    assert len(trace.windows) == 120
    assert trace.steps[:5].tolist() == [0, 0, 0, 0, 1]
    assert trace.conversations[:5].tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("size", ["0", str((1 << 36) + 1)])
def test_experts_of_a_size_that_no_trace_may_have_are_not_drawn(
    size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "synth", str(tmp_path / "t.trace"), *SMALL[:-1], size]) == 2
    assert f"--blob-bytes {size} does not work; a number from 1 to 68,719,476,736 does" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_profile_of_another_trace_judges_all_windows(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.trace"
    assert run(["trace", "synth", str(other), *SMALL, "--seed", "5"]) == 0
    assert run(["trace", "replay", str(drawn), "--profile", str(other)]) == 0
    assert "120 windows judged; profile: " in capsys.readouterr().out
    assert run(["trace", "replay", str(drawn), "--learn", "0", "--most-swaps", "0"]) == 0
    assert "120 windows judged; profile: none" in capsys.readouterr().out


def test_room_for_less_than_an_expert_is_told_under_the_table(drawn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "replay", str(drawn), "--percent", "1", "--percent", "2", "--percent", "50"]) == 0
    told = "no seats with room for 1 %, 2 %: one of these 48 experts is 2.08 %, so nothing can be hit."
    assert told in capsys.readouterr().out
    assert run(["trace", "replay", str(drawn), "--percent", "2.09"]) == 0
    assert "no seats" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--percent", "0"], "--percent 0 does not work; a number above 0 up to 100 does"),
        (["--percent", "nan"], "--percent nan does not work"),
        (["--learn", "100"], "--learn 100 does not work; a whole number from 0 to 99 does"),
        (["--learn", "1.5"], "1.5"),
        (["--learn", "5", "--profile", "x"], "give --profile or --learn"),
        (["--every", "0"], "swap rule: every is 0"),
        (["--decay", "2"], "swap rule: decay is 2"),
        (["--landing", "-1"], "--landing -1 does not work"),
        (["--json", "/proc"], "--json /proc is a folder"),
        (["--profile", "nowhere.trace"], "nowhere.trace cannot be read: no such file"),
    ],
)
def test_mistakes_of_a_replay_are_one_sentence(
    drawn: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["trace", "replay", str(drawn), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_files_that_do_not_fit_are_one_sentence(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = load_trace(drawn)
    named, short, reads = tmp_path / "named.trace", tmp_path / "short.trace", tmp_path / "reads.trace"
    save_trace(replace(trace, model="other"), named)
    short.write_bytes(drawn.read_bytes()[:1000])
    save_trace(replace(trace, is_read=~trace.is_read), reads)
    capsys.readouterr()
    for arguments, words in (
        ([str(drawn), "--profile", str(named)], "is of another model: its model is 'other', the trace's 'drawn, pop"),
        ([str(short)], "short.trace is truncated: its header describes"),
        ([str(reads)], "has 0 decode windows: there is none to judge"),
        ([str(tmp_path)], "is not a regular file|is a directory"),
        ([str(ROOT / "README.md")], "README.md is no routing trace"),
    ):
        assert run(["trace", "replay", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert any(each in line for each in words.split("|")), line


def test_mistakes_of_a_recording_are_told_before_anything_is_loaded(
    tmp_path: Path, drawn: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(routing, "load_model", loaded)
    out = ["--out", str(tmp_path / "t.trace")]
    capsys.readouterr()
    for arguments, words in (
        (out, "there is no prompt"),
        (["fine", "", *out], "prompt 2 is empty"),
        (["fine", "--max-tokenz", "5", *out], "there is no flag --max-tokenz"),
        (["fine", "--out", str(drawn)], "exists already"),
        (["fine", "--out", "/dev/full"], "/dev/full exists already"),
        (["fine", "--out", str(tmp_path / "no" / "t")], "there is no folder"),
        (["fine"], "--out"),
        (["fine", *out, "--device", "cuda"], "setting device: cuda does not work here"),
        (["fine", *out, "--temperature", "-1"], "temperature"),
    ):
        assert run(["trace", "record", *arguments]) == 2, arguments
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert [path.name for path in tmp_path.iterdir()] == ["drawn.trace"]


def test_ctrl_c_while_recording_leaves_nothing(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def impatient() -> Iterator[ProgressCallback]:
        def press(stage: str, done: int, total: int) -> None:
            if stage == "recording" and done > 3:
                signal.raise_signal(signal.SIGINT)

        yield press

    monkeypatch.setattr(command, "progress_bar", impatient)
    out = tmp_path / "t.trace"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this deaf
    try:
        assert run(["trace", "record", "hello", "--model", str(tiny_model), "--out", str(out)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "interrupted: nothing was written\n"
    assert list(tmp_path.iterdir()) == []
