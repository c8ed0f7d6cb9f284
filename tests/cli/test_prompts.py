"""Prompts of the command line: any bytes of a shell, or stdin without the line feed that ends a pipe."""

import io
import os
import sys
from pathlib import Path

import pytest

from strata.cli import prompts
from strata.cli.prompts import argument_text, read_prompt, read_prompt_file
from strata.errors import RequestError


def test_stdin_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    for raw, expected in ((False, "a\nb"), (True, "a\nb\n")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
        assert read_prompt("-", raw=raw) == expected
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(RequestError, match="standard input is closed"):
        read_prompt("-", raw=False)


def test_what_is_no_text_is_named() -> None:
    with pytest.raises(RequestError, match="prompt 3 is empty: give some text"):
        read_prompt("", raw=False, what="prompt 3")
    with pytest.raises(RequestError, match="--system is not valid UTF-8"):
        argument_text("\udcff", "--system")


def test_a_file_is_the_prompt_without_the_line_feed_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_bytes("a\nb ☃\n".encode())
    assert read_prompt_file(file, raw=False) == "a\nb ☃"
    assert read_prompt_file(file, raw=True) == "a\nb ☃\n"


def test_a_mark_of_byte_order_is_no_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("tea\n".encode("utf-8-sig"))
    assert read_prompt_file(path, raw=True) == "tea\n"


def test_what_is_no_prompt_is_refused_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "long.txt"
    monkeypatch.setattr(prompts, "MOST_BYTES", 1 << 20)
    for content, words in (
        (None, f"--file: there is no file {file}"),
        (b"", f"--file: {file} is empty"),
        (b"\n\n", f"--file: {file} is empty"),
        (b"ab\xff", f"{file} is not valid UTF-8: byte 0xff at offset 2"),
        (bytes((1 << 20) + 1), f"{file} has more than 1 MiB, which no context holds"),
    ):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(RequestError) as refused:
            read_prompt_file(file, raw=False)
        assert str(refused.value).startswith(words)
    with pytest.raises(RequestError, match=f"--file: {tmp_path} is a directory"):
        read_prompt_file(tmp_path, raw=False)
    if os.geteuid():
        file.chmod(0)
        with pytest.raises(RequestError, match="cannot be read: Permission denied"):
            read_prompt_file(file, raw=False)
