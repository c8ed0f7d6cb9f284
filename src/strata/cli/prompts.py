"""Prompts as a command line has them: any bytes that a shell hands over, or stdin. Knows no model."""

import os
import sys

from strata.errors import RequestError
from strata.text.tokenizer import decode_utf8


def argument_text(text: str, what: str) -> str:
    """A text from the command line, where the shell may hand over any bytes."""
    return decode_utf8(os.fsencode(text), what)


def read_prompt(prompt: str, *, raw: bool, what: str = "the prompt") -> str:
    """The prompt's text, `-` for stdin's; the line feed that ends what a shell pipes in is no part of a message."""
    if prompt != "-":
        text = argument_text(prompt, what)
    elif sys.stdin is None:
        raise RequestError("standard input is closed: give the prompt as an argument")
    else:
        text = decode_utf8(sys.stdin.buffer.read(), "standard input")
        text = text if raw else text.rstrip("\n")
    if not text:
        raise RequestError(f"{what} is empty: give some text")
    return text
