"""One JSON value as it comes: what is certain of it so far, as strict JSON. Knows JSON and what models get wrong in it.

Three slips are put right, since they leave no doubt: a control character inside a string is escaped, a backslash that
begins no escape is one of the text, and Python's True, False and None are JSON's. Anything else breaks the value.
"""

import json
import re
from enum import Enum, auto

_SPACE = re.compile(r"[ \t\r\n]+")
_ORDINARY = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})')
_ESCAPE_BEGINNING = re.compile(r"\\(?:u[0-9A-Fa-f]{0,3})?")
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_HALF = re.compile("[\ud800-\udfff]")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
# A reply is bounded by its context, and json.loads of a client by the depth of its recursion.
DEEPEST = 200


def string_of(text: str) -> str:
    """What a JSON string stands for; halves of surrogate pairs, which no text can hold, become U+FFFD."""
    return _HALF.sub("\ufffd", str(json.loads(text)))


class _Expect(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()  # of an array, or its end
    FIRST_KEY = auto()  # of an object, or its end
    KEY = auto()
    COLON = auto()
    NEXT = auto()  # a comma, or the end of what is open
    NOTHING = auto()


class JsonValue:
    """Takes one value from a growing text. What `take` returns, joined, is the value as strict JSON once it is done."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        self._expect = _Expect.VALUE
        self._open: list[str] = []  # the closing characters due, innermost last
        self._in_string = False
        self._is_key = False

    def take(self, text: str, at: int) -> tuple[str, int]:
        """What is certain of `text[at:]`, and where the rest begins: the next call must go on there.

        A word or an escape that may go on is taken only when it is whole. A number at the top ends where something
        else follows. Nothing is taken from where the value is done or broken.
        """
        out: list[str] = []
        while at < len(text) and not self.is_done and not self.is_broken:
            piece, behind = self._string_part(text, at) if self._in_string else self._part(text, at)
            if behind == at:
                break
            out.append(piece)
            at = behind
        return "".join(out), at

    def _string_part(self, text: str, at: int) -> tuple[str, int]:
        if found := _ORDINARY.match(text, at):
            return found.group(), found.end()
        if text[at] == '"':
            self._in_string = False
            self._value_ended()
            return '"', at + 1
        if text[at] != "\\":
            return json.dumps(text[at])[1:-1], at + 1
        if found := _ESCAPE.match(text, at):
            return found.group(), found.end()
        beginning = _ESCAPE_BEGINNING.match(text, at)
        if beginning is not None and beginning.end() == len(text):
            return "", at
        return "\\\\", at + 1

    def _part(self, text: str, at: int) -> tuple[str, int]:
        if found := _SPACE.match(text, at):
            return found.group(), found.end()
        character = text[at]
        if self._expect in (_Expect.KEY, _Expect.FIRST_KEY) and character == '"':
            self._in_string = self._is_key = True
        elif self._expect in (_Expect.FIRST_ITEM, _Expect.FIRST_KEY, _Expect.NEXT) and character == self._open[-1]:
            self._open.pop()
            self._value_ended()
        elif self._expect is _Expect.COLON and character == ":":
            self._expect = _Expect.VALUE
        elif self._expect is _Expect.NEXT and character == ",":
            self._expect = _Expect.KEY if self._open[-1] == "}" else _Expect.VALUE
        elif self._expect in (_Expect.VALUE, _Expect.FIRST_ITEM):
            return self._value_part(text, at)
        else:
            self.is_broken = True
            return "", at
        return character, at + 1

    def _value_part(self, text: str, at: int) -> tuple[str, int]:
        character = text[at]
        if character == '"':
            self._in_string = True
        elif character in "{[" and len(self._open) < DEEPEST:
            self._open.append("}" if character == "{" else "]")
            self._expect = _Expect.FIRST_KEY if character == "{" else _Expect.FIRST_ITEM
        else:
            return self._word(text, at)
        return character, at + 1

    def _word(self, text: str, at: int) -> tuple[str, int]:
        found = _WORD.match(text, at)
        if found is not None and found.end() == len(text):
            return "", at
        word = found.group() if found is not None else ""
        value = word if _NUMBER.fullmatch(word) else _WORDS.get(word)
        if value is None:
            self.is_broken = True
            return "", at
        self._value_ended()
        return value, at + len(word)

    def _value_ended(self) -> None:
        if self._is_key:
            self._is_key = False
            self._expect = _Expect.COLON
        elif self._open:
            self._expect = _Expect.NEXT
        else:
            self._expect = _Expect.NOTHING
            self.is_done = True
