"""Token ids to text, one id at a time, never half a character.

Knows how tokens of each kind become bytes or text; not stop strings, not what a message is.
"""

import codecs
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Ids of which the text so far ends in a replacement character are held back, since the next id may complete it.
# A character has four bytes at most; a model that writes real replacement characters must not be held for ever.
_LONGEST_HOLD = 8


@dataclass(frozen=True)
class AddedToken:
    """A token that the tokenizer finds in text before anything else."""

    token_id: int
    literal: str
    special: bool  # not part of a reply's text
    control: bool  # a user's text never becomes it


class TokenDecoder:
    """What the ids of one tokenizer stand for; shared by all its detokenizers."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        added_tokens: Iterable[AddedToken],
        decoder_json: Mapping[str, Any] | None,
    ) -> None:
        self._tokenizer = tokenizer
        self.added = {token.token_id: token for token in added_tokens}
        kinds = _decoder_kinds(decoder_json)
        self.byte_level = kinds == ["ByteLevel"]
        self._byte_fallback = "ByteFallback" in kinds
        self._known_bytes: dict[int, bytes | None] = {}

    def bytes_of(self, token_id: int) -> bytes | None:
        """The exact bytes of a token that is made of bytes; None for one whose text depends on its neighbours."""
        if token_id not in self._known_bytes:
            self._known_bytes[token_id] = self._find_bytes(token_id)
        return self._known_bytes[token_id]

    def _find_bytes(self, token_id: int) -> bytes | None:
        text = self._tokenizer.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None  # all that the library takes
        if text is None:
            return b""
        if self.byte_level:
            table = _bytes_of_characters()
            if all(character in table for character in text):
                return bytes(table[character] for character in text)
            return text.encode()
        match = _BYTE_TOKEN.fullmatch(text) if self._byte_fallback else None
        return bytes([int(match[1], 16)]) if match else None

    def text_of(self, token_ids: list[int]) -> str:
        """The library's own decoding of a few ids."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token as it stands in the middle of a text."""
        if token_id in self.added:
            return self.added[token_id].literal.encode()
        exact = self.bytes_of(token_id)
        if exact is not None:
            return exact
        # Some decoders drop a space at the very start: behind the same token there is none to drop.
        alone = self.text_of([token_id])
        return self.text_of([token_id, token_id])[len(alone) :].encode()


class Detokenizer:
    """One stream of ids. The pieces that `feed` and `finish` return, joined, are the text of the whole stream.

    Byte-level tokenizers: each token is some bytes, decoded as they come. Others: the library decodes the new ids
    behind an anchor, the last id whose text is out, so that spaces come out as in the middle of a text; tokens of
    single bytes (`<0xE2>`) among them are bytes. Bytes that are no UTF-8 become replacement characters, as
    `bytes.decode("utf-8", "replace")` has it. Each id costs the same, however long the text is.
    """

    def __init__(self, decoder: TokenDecoder, show_special: bool = False) -> None:
        self._decoder = decoder
        self._show_special = show_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._anchor: list[int] = []  # ids whose text is out and stands before the next
        self._held: list[int] = []  # ids whose text is not out
        self._first_bytes: list[int] = []  # the first character's byte tokens: a decoder may drop a space there

    def feed(self, token_id: int) -> str:
        """The text that this id completes; "" while a character is incomplete. Ids without a token are no text."""
        added = self._decoder.added.get(token_id)
        if added is not None:
            if added.special and not self._show_special:
                return ""
            return self._flush() + self._literal(token_id, added.literal)
        data = self._decoder.bytes_of(token_id)
        if self._decoder.byte_level:
            return self._utf8.decode(data or b"")
        if data == b"":
            return ""
        if data is None:
            return self._flush_bytes() + self._feed_window(token_id)
        return self._flush_window() + self._feed_byte(token_id, data)

    def finish(self) -> str:
        """What was held back; incomplete characters become replacement characters. The stream is over."""
        return self._flush()

    def _literal(self, token_id: int, literal: str) -> str:
        self._anchor = [token_id]
        return literal

    def _feed_byte(self, token_id: int, data: bytes) -> str:
        text = self._utf8.decode(data)
        if self._anchor:
            self._anchor = [token_id]
            return text
        self._first_bytes.append(token_id)
        if not text:
            return ""
        self._anchor = [token_id]
        return text if "\ufffd" in text else self._decoder.text_of(self._first_bytes)

    def _feed_window(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._window_text()
        if text.endswith("\ufffd") and len(self._held) < _LONGEST_HOLD:
            return ""
        self._anchor, self._held = self._held[-1:], []
        return text

    def _window_text(self) -> str:
        before = self._decoder.text_of(self._anchor) if self._anchor else ""
        return self._decoder.text_of(self._anchor + self._held)[len(before) :]

    def _flush(self) -> str:
        return self._flush_window() + self._flush_bytes()

    def _flush_window(self) -> str:
        if not self._held:
            return ""
        text = self._window_text()
        self._anchor, self._held = self._held[-1:], []
        return text

    def _flush_bytes(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        if text and not self._anchor:
            self._anchor = self._first_bytes
        return text


def _decoder_kinds(decoder_json: Mapping[str, Any] | None) -> list[str]:
    if not decoder_json:
        return []
    if decoder_json.get("type") == "Sequence":
        return [kind for part in decoder_json.get("decoders", ()) for kind in _decoder_kinds(part)]
    return [str(decoder_json.get("type"))]


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 stands for itself, other bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
