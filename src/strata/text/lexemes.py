"""A reply's token ids as ordinary text and markers: where `</think>` stands as a marker and where it is only spelled.

Knows tokens and literals; not what a marker means (`reply.py`).

A marker that is one added token of the tokenizer is found by its id alone: the same letters in ordinary tokens, copied
from a user's message for instance, stay text. A marker that no token stands for is found in the text.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from strata.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Lexeme:
    """A piece of ordinary text, or one marker whole."""

    text: str
    is_marker: bool


class MarkerLexer:
    """One reply's lexemes. Their texts joined are the reply as it was written. No marker may begin with another one.

    Special tokens that are no markers have no text but where it is asked for: in arguments they are what was written.
    """

    def __init__(self, tokenizer: Tokenizer, markers: Iterable[str]) -> None:
        markers = tuple(dict.fromkeys(markers))
        self._detokenizer = tokenizer.detokenizer(show_special=True)
        self._markers = {id_: marker for marker in markers if (id_ := tokenizer.token_id(marker)) is not None}
        self._silent = {
            token.token_id: token.literal
            for token in tokenizer.added_tokens
            if token.special and token.token_id not in self._markers
        }
        self._finder = _MarkerFinder([marker for marker in markers if tokenizer.token_id(marker) is None])
        self.characters = 0  # of all tokens taken so far, those held back included

    def feed(self, token_id: int, shows_special: bool = False) -> list[Lexeme]:
        """What this token makes certain."""
        text = self._detokenizer.feed(token_id)
        if token_id in self._silent and not shows_special:
            text = text[: len(text) - len(self._silent[token_id])]
        self.characters += len(text)
        marker = self._markers.get(token_id)
        if marker is None:
            return self._finder.feed(text)
        before = text[: len(text) - len(marker)]
        return [*self._finder.feed(before), *self._finder.finish(), Lexeme(marker, True)]

    def finish(self) -> list[Lexeme]:
        """What was held back."""
        text = self._detokenizer.finish()
        self.characters += len(text)
        return [*self._finder.feed(text), *self._finder.finish()]


class _MarkerFinder:
    """Markers in text, wherever it is cut into pieces; held back is only what may still become one."""

    def __init__(self, markers: list[str]) -> None:
        self._pattern = re.compile("(" + "|".join(map(re.escape, markers)) + ")") if markers else None
        self._beginnings = {marker[:n] for marker in markers for n in range(1, len(marker))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""

    def feed(self, piece: str) -> list[Lexeme]:
        if self._pattern is None:
            return [Lexeme(piece, False)] if piece else []
        parts = self._pattern.split(self._held + piece)  # text, marker, text, .., text
        last = parts.pop()
        shown = len(last) - self._length_held(last)
        self._held = last[shown:]
        found = [Lexeme(part, index % 2 == 1) for index, part in enumerate(parts)]
        return [lexeme for lexeme in [*found, Lexeme(last[:shown], False)] if lexeme.text]

    def finish(self) -> list[Lexeme]:
        held, self._held = self._held, ""
        return [Lexeme(held, False)] if held else []

    def _length_held(self, text: str) -> int:
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((n for n in lengths if text[-n:] in self._beginnings), 0)
