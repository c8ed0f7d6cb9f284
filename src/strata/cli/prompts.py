"""Prompts as a command line has them: any bytes that a shell hands over, stdin, or a file. Knows no model."""

import codecs
import os
import sys
from pathlib import Path
from typing import BinaryIO

from strata.errors import RequestError
from strata.text.tokenizer import decode_utf8

MOST_BYTES = 64 << 20  # of a prompt: more than any context holds
STANDARD_INPUT = "-"


def argument_text(text: str, what: str) -> str:
    """A text from the command line, where the shell may hand over any bytes."""
    return decode_utf8(os.fsencode(text), what)


def read_prompt(prompt: str, *, raw: bool, what: str = "the prompt") -> str:
    """The prompt's text, `-` for stdin's; the line feed that ends what a shell pipes in is no part of a message."""
    if prompt != STANDARD_INPUT:
        text = argument_text(prompt, what)
    elif sys.stdin is None:
        raise RequestError("standard input is closed: give the prompt as an argument")
    else:
        text = _read_text(sys.stdin.buffer, "standard input", raw=raw)
    if not text:
        raise RequestError(f"{what} is empty: give some text")
    return text


def read_prompt_file(path: Path, *, raw: bool) -> str:
    """The text of a file, or of a pipe that has a name; the line feed at its end is no part of a message."""
    try:
        with path.open("rb") as file:
            text = _read_text(file, str(path), raw=raw)
    except FileNotFoundError:
        raise RequestError(f"--file: there is no file {path}") from None
    except IsADirectoryError:
        raise RequestError(f"--file: {path} is a directory: name a text file") from None
    except OSError as failure:
        raise RequestError(f"--file: {path} cannot be read: {failure.strerror or failure}") from None
    if not text:
        raise RequestError(f"--file: {path} is empty: a prompt needs some text")
    return text


def _read_text(file: BinaryIO, what: str, *, raw: bool) -> str:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise RequestError(f"{what} has more than {MOST_BYTES >> 20} MiB, which no context holds: give less text")
    text = decode_utf8(data.removeprefix(codecs.BOM_UTF8), what)
    return text if raw else text.rstrip("\n")
