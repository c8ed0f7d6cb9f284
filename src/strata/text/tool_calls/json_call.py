"""Calls that are written as JSON objects. Knows one such object, and what models do instead; no markers.

Arguments go out as they come.
"""

from collections.abc import Callable

from strata.text.tool_calls.block import WHITE, BlockReader
from strata.text.tool_calls.json_value import JsonValue, string_of


class JsonCallReader(BlockReader):
    """Reads calls of the form `{"name": .., "arguments": {..}}`; how they follow each other is the dialect's matter.

    Also read: `parameters` for `arguments`; arguments in front of the name, as a string that holds JSON, as null or
    left out (all of these are complete calls); a missing last brace in front of the closing marker; other keys, which
    are dropped; the slips that `json_value.py` puts right.
    """

    def __init__(self, first: Callable[[], bool], closing: str) -> None:
        super().__init__(first, closing)
        self._value = JsonValue()  # the one being read
        self._key = ""
        self._text = ""  # of a value that is not streamed
        self._is_arguments = False  # the value is this call's arguments
        self._streams = False
        self._begin_object()

    def _begin_object(self) -> None:
        self._name: str | None = None
        self._has_arguments = False
        self._kept_arguments = "{}"  # those that are not streamed

    def _accepts_key(self, key: str) -> bool:
        """Whether an object with this key may be a call."""
        return True

    def _accepts_name(self, name: str) -> bool:
        """Whether a call may have this name."""
        return name != ""

    def _behind_object(self) -> bool:
        """Read what follows a call."""
        raise NotImplementedError

    def _before_object(self) -> bool:
        found = self._next()
        if found == "{":
            return self._goto(self._before_key, 1)
        return self._give_up() if found else False

    def _before_key(self) -> bool:
        found = self._next()
        if found == '"':
            self._value, self._text = JsonValue(), ""
            return self._goto(self._in_key)
        if found == "}":
            return self._goto(self._behind_value)
        return self._give_up() if found else False

    def _in_key(self) -> bool:
        self._text += self._take_value()
        if not self._value.is_done:
            return False
        self._key = string_of(self._text)
        return self._goto(self._colon) if self._accepts_key(self._key) else self._give_up()

    def _colon(self) -> bool:
        found = self._next()
        if found == ":":
            return self._goto(self._before_value, 1)
        return self._give_up() if found else False

    def _before_value(self) -> bool:
        found = self._next()
        if not found:
            return False
        self._value, self._text = JsonValue(), ""
        self._is_arguments = self._key in ("arguments", "parameters") and not self._has_arguments
        self._streams = self._is_arguments and self._name is not None and found == "{"
        if self._streams:
            self._begin_call(self._name or "")
        return self._goto(self._in_value)

    def _in_value(self) -> bool:
        piece = self._take_value()
        if self._streams:
            self._say_arguments(piece)
        else:
            self._text += piece
        if self._value.is_broken:
            return self._give_up()
        if not self._value.is_done:
            return False
        return self._goto(self._behind_value) if self._keep_value() else self._give_up()

    def _take_value(self) -> str:
        piece, behind = self._value.take(self._raw, self._at)
        self._read(behind - self._at)
        return piece

    def _keep_value(self) -> bool:
        """Remember a value that came whole; False if no call can have it."""
        if self._is_arguments:
            self._has_arguments = True
            return self._streams or self._keep_arguments(self._text)
        if self._key == "name" and self._name is None:
            self._name = string_of(self._text) if self._text.startswith('"') else ""
            return self._accepts_name(self._name)
        return True

    def _keep_arguments(self, text: str) -> bool:
        """Arguments that came in front of the name or not as an object; False if they cannot be made one."""
        if text.startswith('"'):
            inside, value = string_of(text).strip(WHITE), JsonValue()
            text, behind = value.take(inside, 0)
            if not value.is_done or behind < len(inside):
                return False
        self._kept_arguments = "{}" if text == "null" else text
        return self._kept_arguments.startswith("{")

    def _behind_value(self) -> bool:
        found = self._next()
        if found == ",":
            return self._goto(self._before_key, 1)
        if found == "}":
            return self._end_object(1)
        if found and self._has_arguments and self._closing.startswith(found):  # the last brace is missing
            if self._has(self._closing):
                return self._end_object(0)
            return False if self._may_have(self._closing) else self._give_up()
        return self._give_up() if found else False

    def _end_object(self, characters: int) -> bool:
        if self._name is None:
            return self._give_up()
        if not self._is_begun:
            self._begin_call(self._name)
            self._say_arguments(self._kept_arguments)
        self._read(characters)
        self._end_call(is_complete=True)
        self._begin_object()
        return self._goto(self._behind_object)
