"""How byte-level tokenizers cut text before their merges: the names that GGUF files use, as tokenizer.json writes them.

Knows cuts, normalizers and what goes with a name; knows no vocabulary and no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut text. `names` are `tokenizer.ggml.pre` values that mean it, the first one is written."""

    names: tuple[str, ...]
    steps: tuple[Mapping[str, Any], ...]  # of tokenizer.json's pre_tokenizer
    normalizer: str | None = None  # what published tokenizers of this kind have in front
    ignores_merges: bool = False  # a word that is in the vocabulary is taken whole
    adds_start: bool = False  # whether a text begins with the start token if the file does not say

    def as_json(self) -> dict[str, Any]:
        """The `pre_tokenizer` of a tokenizer.json."""
        return dict(self.steps[0]) if len(self.steps) == 1 else _sequence(self.steps)


def _sequence(steps: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [dict(step) for step in steps]}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(*, cuts_words: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": cuts_words}


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(letters: str, number: str) -> str:
    """Endings, words with at most one sign in front, numbers, signs with the line ends behind them, spaces."""
    signs = rf" ?[^\s{letters}\p{{N}}]+[\r\n]*"
    word = f"[{letters}]+" if len(letters) > 5 else f"{letters}+"
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{word}|{number}|{signs}|{_LINES_AND_SPACES}"


_DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS = (
    PreTokenizer(
        ("qwen2", "deepseek-r1-qwen", "megrez"),
        (_split(_words(r"\p{L}", r"\p{N}")), _bytes(cuts_words=False)),
        normalizer="NFC",
    ),
    PreTokenizer(("qwen35",), (_split(_words(r"\p{L}\p{M}", r"\p{N}")), _bytes(cuts_words=False)), normalizer="NFC"),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"),
        (_split(_words(r"\p{L}", r"\p{N}{1,3}")), _bytes(cuts_words=False)),
        ignores_merges=True,
        adds_start=True,
    ),
    PreTokenizer(("smollm", "starcoder", "refact", "codeshell", "command-r"), (_DIGITS, _bytes(cuts_words=True))),
    PreTokenizer(("gpt-2", "phi-2", "gigachat", "mellum"), (_bytes(cuts_words=True),)),
)


def find_pre_tokenizer(name: str) -> PreTokenizer | None:
    """The way to cut that a GGUF file calls `name`."""
    return next((found for found in PRE_TOKENIZERS if name in found.names), None)


def known_names() -> str:
    """Every name that is read, for error messages."""
    return ", ".join(name for found in PRE_TOKENIZERS for name in found.names)


def recognize_pre_tokenizer(description: Any) -> PreTokenizer | None:
    """The way to cut that a tokenizer.json's `pre_tokenizer` describes, whatever else its fields say."""
    wanted = _essence(description)
    return next((found for found in PRE_TOKENIZERS if _essence(found.as_json()) == wanted), None)


def _essence(description: Any) -> tuple[Any, ...]:
    """What of a pre-tokenizer changes tokens: its steps with the fields that matter."""
    if not isinstance(description, Mapping):
        return ()
    kind = description.get("type")
    if kind == "Sequence":
        steps = description.get("pretokenizers")
        return tuple(part for step in steps for part in _essence(step)) if isinstance(steps, list) else ()
    if kind == "ByteLevel":
        return (kind, bool(description.get("add_prefix_space")), bool(description.get("use_regex", True)))
    if kind == "Split":
        return (kind, str(description.get("pattern")), description.get("behavior"), bool(description.get("invert")))
    if kind == "Digits":
        return (kind, bool(description.get("individual_digits")))
    return (kind, str(description))
