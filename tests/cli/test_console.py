"""What reaches a terminal: no control characters, a bar only where someone can see it, a line with every figure."""

import io
import re

import pytest

from strata.cli.console import printable, progress_bar, statistics_line, write_line, write_reply
from strata.types import Finished, FinishReason, Usage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown_and_not_sent() -> None:
    assert printable("a\x1b[2Jb\rc\x9b\x7f") == "a\\x1b[2Jb\\x0dc\\x9b\\x7f"
    assert printable("tab\tline\nümlaut ☃ 🙂") == "tab\tline\nümlaut ☃ 🙂"
    assert printable("half \udce9") == "half \\udce9"


def test_a_line_that_nothing_takes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    for stream in (Full(), None):
        monkeypatch.setattr("sys.stderr", stream)
        write_line("how it went")


def test_reply_is_harmless_on_a_terminal_and_exact_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, expected in ((Terminal(), "a\\x1bb"), (io.StringIO(), "a\x1bb")):
        monkeypatch.setattr("sys.stdout", stream)
        write_reply("a\x1bb")
        assert stream.getvalue() == expected


def test_no_bar_without_a_terminal() -> None:
    with progress_bar(io.StringIO()) as report:
        assert report is None


def test_bar_shows_the_stage_and_goes_when_it_is_done() -> None:
    terminal = Terminal()
    with progress_bar(terminal) as report:
        assert report is not None
        report("loading the model", 1, 4)
        report("loading the model", 4, 4)
        shown = terminal.getvalue()
        report("reading the prompt", 1000, 2500)
    assert "1,000 of 2,500 tokens" in terminal.getvalue()
    assert "loading the model" in shown
    assert "25 %" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "reading the prompt" in terminal.getvalue()


def test_statistics_name_what_there_is() -> None:
    usage = Usage(100, 11, 5, 12, 6, read_seconds=2.0, decode_seconds=4.0)
    line = statistics_line(Finished(FinishReason.STOP, usage))
    assert line == "100 prompt tokens at 50/s, 11 tokens at 2.5/s, 6 of 12 drafts accepted"
    line = statistics_line(Finished(FinishReason.LENGTH, usage), seed=7)
    assert line.endswith("seed 7, ended by length")
    none = Usage(9, 0, 0, 0, 0, read_seconds=1.0, decode_seconds=0.0)
    line = statistics_line(Finished(FinishReason.CANCELLED, none))
    assert line == "cancelled before the first token of a reply to 9 prompt tokens"
    one = Usage(9, 1, 0, 0, 0, read_seconds=1.0, decode_seconds=0.0)
    assert statistics_line(Finished(FinishReason.STOP, one)) == "9 prompt tokens at 9/s, 1 token"
