"""Stop strings across the borders of text pieces.

Knows strings only; where the pieces come from and what happens after a stop is the caller's matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from strata.errors import RequestError


@dataclass(frozen=True)
class StopResult:
    """What one piece of text settles."""

    text: str  # may be shown now: no stop string can begin in it any more
    stop: str | None  # the stop string that was found behind `text`; the stream is over


class StopMatcher:
    """Finds the first of several stop strings in a stream, wherever the stream is cut into pieces.

    The stop whose last character comes first wins; of several that end there the longest. Text that may still be the
    beginning of a stop is held back. One step per character and stop, independent of how long the stops are: each
    stop keeps the length of its longest prefix that ends the text (Knuth, Morris and Pratt).
    Raises RequestError for an empty stop string.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise RequestError("stop holds an empty string; every stop string needs at least one character")
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # characters of each stop that end the text so far
        self._held = ""
        self._found: str | None = None

    @property
    def found(self) -> str | None:
        """The stop string that ended the stream, if one did."""
        return self._found

    def feed(self, piece: str) -> StopResult:
        """Take the next piece. After a stop was found, further text is ignored."""
        if self._found is not None:
            return StopResult("", self._found)
        if not self._stops:
            return StopResult(piece, None)
        for index, character in enumerate(piece):
            self._advance(character)
            if self._found is not None:
                text = self._held + piece[: index + 1]
                self._held = ""
                return StopResult(text[: len(text) - len(self._found)], self._found)
        text = self._held + piece
        shown = len(text) - max(self._matched)
        self._held = text[shown:]
        return StopResult(text[:shown], None)

    def finish(self) -> str:
        """The text that was held back when the stream ended without a stop."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> None:
        for i, stop in enumerate(self._stops):
            matched = self._matched[i]
            while matched and stop[matched] != character:
                matched = self._fallbacks[i][matched]
            matched += stop[matched] == character
            self._matched[i] = matched
            if matched == len(stop) and (self._found is None or len(stop) > len(self._found)):
                self._found = stop


def _fallbacks(stop: str) -> list[int]:
    """For each length n of a prefix, the length of its longest proper prefix that is also its suffix."""
    fallbacks = [0, 0]
    for n in range(1, len(stop)):
        k = fallbacks[n]
        while k and stop[k] != stop[n]:
            k = fallbacks[k]
        fallbacks.append(k + (stop[k] == stop[n]))
    return fallbacks
