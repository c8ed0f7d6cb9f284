"""The value of one parameter in the dialect of `qwen_xml.py`: where it ends in the text, and what it is in JSON.

Knows the tags around values; not the calls.
"""

import json
import re

from strata.text.tool_calls.argument_types import may_go_on_as_string, typed_value
from strata.text.tool_calls.block import behind_white

FUNCTION = "<function="
END_FUNCTION = "</function>"
PARAMETER = "<parameter="
END_PARAMETER = "</parameter>"
CLOSING = "</tool_call>"
NAME = re.compile(r"([^<>\n]{1,256})>")  # behind `<function=` and `<parameter=`
NAME_BEGINNING = re.compile(r"[^<>\n]{0,256}")


class ParameterValue:
    """One value, as it comes.

    Nothing in it is escaped, so what looks like a tag may be part of it. In a block (`is_block`: a newline stands
    behind `<parameter=key>`) one newline in front of the end belongs to the tags, and the closing tag has a line of its
    own, or else what follows it does. In every form something must follow that may follow a value: so a value can hold
    `</parameter>` in the middle of a sentence, but not an example of a whole call in its own form.
    `other_keys`: keys of which a parameter may begin although this one's closing tag is missing.
    """

    def __init__(self, types: frozenset[str], is_block: bool, other_keys: frozenset[str]) -> None:
        self._types = types
        self._is_block = is_block
        self._other_keys = other_keys
        self._unsaid = ""
        self._is_string = False  # is said to be one
        self._is_empty = True

    def end_in(self, raw: str, at: int) -> tuple[int, int | None]:
        """From `at` on: up to where `raw` is certainly the value, and where the tag that ends it begins.

        The tag is the closing one or, where that is missing, the next one; None: it has not come.
        """
        tag = raw.find("<", at)
        while tag >= 0:
            ends = self._ends_at(raw, tag, self._begins_line(raw, at, tag))
            if ends:
                return tag - (self._is_block and raw.endswith("\n", at, tag)), tag
            if ends is None:
                return tag - raw.endswith("\n", at, tag), None
            tag = raw.find("<", tag + 1)
        return len(raw) - raw.endswith("\n", at), None

    def say(self, text: str) -> str:
        """The JSON of the next piece, as far as it is certain."""
        self._is_empty = self._is_empty and not text
        self._unsaid += text
        if not self._is_string and not may_go_on_as_string(self._unsaid, self._types):
            return ""
        opening = "" if self._is_string else '"'
        self._is_string = True
        piece, self._unsaid = opening + _escaped(self._unsaid), ""
        return piece

    def finish(self, text: str) -> str:
        """The JSON of the last piece."""
        if self._is_string:
            return _escaped(text) + '"'
        return typed_value(self._unsaid + text, self._types)

    def _begins_line(self, raw: str, at: int, tag: int) -> bool:
        return raw[tag - 1] == "\n" if tag > at else self._is_block and self._is_empty

    def _ends_at(self, raw: str, tag: int, begins_line: bool) -> bool | None:
        """Whether the tag here ends the value; None: what follows has to come first."""
        if raw.startswith(END_PARAMETER, tag):
            behind = tag + len(END_PARAMETER)
            follower = behind_white(raw, behind)
            is_alone = begins_line or "\n" in raw[behind:follower]
            if self._is_block and not is_alone and follower < len(raw):
                return False
            return has_any((PARAMETER, END_FUNCTION, CLOSING), raw, follower)
        if raw.startswith(END_FUNCTION, tag):
            fits = begins_line or not self._is_block
            return fits and has_any((CLOSING,), raw, behind_white(raw, tag + len(END_FUNCTION)))
        if raw.startswith(PARAMETER, tag):
            return begins_line and self._begins_other(raw, tag + len(PARAMETER))
        return None if has_any((END_PARAMETER, END_FUNCTION, PARAMETER), raw, tag) is None else False

    def _begins_other(self, raw: str, at: int) -> bool | None:
        if NAME_BEGINNING.fullmatch(raw, at):
            return None
        found = NAME.match(raw, at)
        return found is not None and found[1].strip() in self._other_keys


def has_any(literals: tuple[str, ...], raw: str, at: int) -> bool | None:
    """Whether one of the literals stands at `at`; None: one may, if more comes."""
    if any(raw.startswith(literal, at) for literal in literals):
        return True
    return None if any(literal.startswith(raw[at:]) for literal in literals) else False


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
