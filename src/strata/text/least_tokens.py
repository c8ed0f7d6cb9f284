"""How many tokens a text has at the least, from its length alone: what cannot fit need not be encoded.

Knows which tokenizers lose no byte of a text; encodes nothing. Of all others it says 0.
"""

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BYTES_OF_TEXT = frozenset(bytes((byte,)) for byte in (*range(0xC0), *range(0xC2, 0xF5)))  # that UTF-8 may hold
_LOSSLESS = frozenset(("Sequence", "Split", "ByteLevel", "Digits"))  # ways of cutting, where none is told to remove


class LeastTokens:
    """For one tokenizer: its description, the bytes of its tokens by id, and the literals of its added tokens.

    A bound needs a BPE over bytes of which each is a token, and nothing that drops or joins text: no token without an
    end, no white space that an added token takes along. Then no token stands for more bytes than the longest one.
    """

    def __init__(
        self, tokenizer_json: Mapping[str, Any], token_bytes: Sequence[bytes], literals: Iterable[str]
    ) -> None:
        normalizer = tokenizer_json.get("normalizer")
        self._is_in_nfc = normalizer is not None
        keeps_text = _keeps_every_byte(tokenizer_json) and token_bytes and _BYTES_OF_TEXT.issubset(token_bytes)
        self._most_bytes = (
            max(*map(len, token_bytes), *(len(literal.encode()) for literal in literals), 1) if keeps_text else None
        )

    def of(self, text: str) -> int:
        """Tokens of `text` at the least; 0 where nothing can be said, as of a text that a normalizer may shorten."""
        if self._most_bytes is None or (self._is_in_nfc and not unicodedata.is_normalized("NFC", text)):
            return 0
        return -(-len(text.encode("utf-8", "surrogatepass")) // self._most_bytes)


def _keeps_every_byte(tokenizer_json: Mapping[str, Any]) -> bool:
    model, normalizer = tokenizer_json.get("model") or {}, tokenizer_json.get("normalizer")
    if model.get("type") != "BPE" or model.get("fuse_unk"):
        return False
    if normalizer is not None and (not isinstance(normalizer, Mapping) or normalizer.get("type") != "NFC"):
        return False
    if any(token.get("lstrip") or token.get("rstrip") for token in tokenizer_json.get("added_tokens") or ()):
        return False
    kinds = _kinds(tokenizer_json.get("pre_tokenizer"))
    return (
        "ByteLevel" in kinds and kinds <= _LOSSLESS and '"Removed"' not in json.dumps(tokenizer_json["pre_tokenizer"])
    )


def _kinds(cutter: Any) -> set[str]:
    """The kinds of a way of cutting and of those that it consists of."""
    if not isinstance(cutter, Mapping):
        return set()
    return {str(cutter.get("type"))}.union(*(_kinds(inner) for inner in cutter.get("pretokenizers") or ()))
