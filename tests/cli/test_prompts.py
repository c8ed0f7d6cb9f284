"""Prompts of the command line: any bytes of a shell, or stdin without the line feed that ends a pipe."""

import io
import sys

import pytest

from strata.cli.prompts import argument_text, read_prompt
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
