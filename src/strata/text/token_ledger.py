"""Which part of a reply each token belongs to. Knows positions in the reply's text; not what stands there."""

import bisect
from collections import deque
from dataclasses import dataclass

from strata.sampling.draw import Draw
from strata.text.reply_events import TokenShown
from strata.text.tokenizer import Tokenizer


@dataclass
class _Entry:
    draw: Draw
    start: int
    end: int  # start == end: it completes no character, and goes with the character that it begins
    ends_reply: bool
    is_content: bool = False


class TokenLedger:
    """The tokens of one reply, told to the caller in order as soon as all of their characters have been settled.

    Positions count characters of the reply from 0. `shows`: whether `settle` returns anything.
    """

    def __init__(self, tokenizer: Tokenizer, shows: bool) -> None:
        self._tokenizer = tokenizer
        self._shows = shows
        self._ends: list[int] = []
        self._waiting: deque[_Entry] = deque()
        self.settled = 0  # characters of which it is known what they are

    def add(self, draw: Draw, end: int, ends_reply: bool = False) -> None:
        """A token, and the position behind what the tokens so far have written. An end of text is never content."""
        start = self._ends[-1] if self._ends else 0
        self._ends.append(end)
        if self._shows:
            self._waiting.append(_Entry(draw, start, end, ends_reply))

    def settle(self, characters: int, is_content: bool) -> list[TokenShown]:
        """The next `characters` of the reply are content, or are not."""
        begin, self.settled = self.settled, self.settled + characters
        shown = []
        while self._waiting:
            entry = self._waiting[0]
            if is_content and entry.start < self.settled and max(entry.end, entry.start + 1) > begin:
                entry.is_content = True
            is_silent = entry.ends_reply and entry.start == entry.end
            if entry.end > self.settled or (entry.start == self.settled and not is_silent):
                break
            shown.append(self._shown(self._waiting.popleft()))
        # A token that reaches over the border stays first; those behind it begin later and are not concerned.
        return shown

    def finish(self) -> list[TokenShown]:
        """Tokens that wrote nothing to the end."""
        shown = [self._shown(entry) for entry in self._waiting]
        self._waiting.clear()
        return shown

    def tokens_until(self, position: int) -> int:
        """How many tokens it takes to write the first `position` characters."""
        return min(bisect.bisect_left(self._ends, position) + 1, len(self._ends))

    def _shown(self, entry: _Entry) -> TokenShown:
        text = self._tokenizer.token_bytes(entry.draw.token_id).decode("utf-8", "replace")
        return TokenShown(entry.draw, text, entry.is_content and not entry.ends_reply)
