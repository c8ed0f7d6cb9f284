"""What readers of a block share: the text that is not settled yet, and the steps that go over it.

Knows no dialect. A reader is a chain of small methods: each reads one thing and names the next (`_goto`), or says that
more text has to come (returns False), or that no call can be made of what follows (`_give_up`).
"""

import re
from collections.abc import Callable

from strata.text.tool_calls.dialect import BlockStep, CallArguments, CallEnd, CallName, CallPart

WHITE = " \t\r\n"
_SPACE = re.compile(f"[{WHITE}]*")


class BlockReader:
    """A `CallBlock` whose first method is `first`, and whose closing marker is `closing`."""

    def __init__(self, first: Callable[[], bool], closing: str) -> None:
        self._closing = closing
        self._raw = ""  # what is not settled
        self._at = 0  # up to here it is read
        self._sure = 0  # up to here it is part of calls
        self._is_begun = False  # a call is, and has not ended
        self._parts: list[CallPart] = []
        self._over: tuple[str, bool] | None = None  # rest, whether the closing marker came
        self._advance = first

    def feed(self, text: str) -> BlockStep:
        """See `CallBlock`."""
        self._raw += text
        while self._over is None and self._advance():
            pass
        return self._step()

    def finish(self) -> BlockStep:
        """See `CallBlock`."""
        if self._is_begun:
            self._at = len(self._raw)
            self._end_call(is_complete=False)
        elif self._closing.startswith(self._raw[self._sure :].strip(WHITE)):
            self._sure = len(self._raw)
        self._over = (self._raw[self._sure :], False)
        return self._step()

    def _step(self) -> BlockStep:
        settled, parts = self._sure, tuple(self._parts)
        self._raw = self._raw[settled:]
        self._at, self._sure, self._parts = self._at - settled, 0, []
        if self._over is None:
            return BlockStep(settled, parts)
        rest, is_closed = self._over
        return BlockStep(settled, parts, is_over=True, rest=rest, is_closed=is_closed)

    def _goto(self, method: Callable[[], bool], characters: int = 0) -> bool:
        """The next `characters` are read; go on with `method`."""
        self._advance = method
        self._read(characters)
        return True

    def _read(self, characters: int) -> None:
        self._at += characters
        if self._is_begun:
            self._sure = self._at

    def _next(self) -> str:
        """The next character that is not white space, which is read; "" if it has not come."""
        self._at = behind_white(self._raw, self._at)
        return self._raw[self._at : self._at + 1]

    def _has(self, literal: str) -> bool:
        return self._raw.startswith(literal, self._at)

    def _may_have(self, *literals: str) -> bool:
        """Whether what has come may be the beginning of one of these."""
        return any(literal.startswith(self._raw[self._at :]) for literal in literals)

    def _begin_call(self, name: str) -> None:
        self._parts.append(CallName(name))
        self._is_begun = True
        self._sure = self._at

    def _say_arguments(self, text: str) -> None:
        if text:
            self._parts.append(CallArguments(text))

    def _end_call(self, is_complete: bool) -> None:
        self._parts.append(CallEnd(is_complete))
        self._is_begun = False
        self._sure = self._at

    def _close(self) -> bool:
        """The closing marker is next."""
        self._at += len(self._closing)
        self._sure = self._at
        self._over = (self._raw[self._at :], True)
        return False

    def _give_up(self) -> bool:
        """What follows is text: all that is not part of a call, or what a broken call has left."""
        if self._is_begun:
            self._end_call(is_complete=False)
        self._over = (self._raw[self._sure :], False)
        return False


def behind_white(text: str, at: int) -> int:
    """Where the white space from `at` on ends."""
    space = _SPACE.match(text, at)
    assert space is not None, "it matches no character, too"
    return space.end()
