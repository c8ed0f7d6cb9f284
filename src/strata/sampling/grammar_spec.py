"""A grammar that a reply must follow, as a request states it. Knows no grammar engine and no tokenizer."""

from dataclasses import dataclass
from enum import Enum


class GrammarKind(Enum):
    """The language in which a grammar is written."""

    JSON_OBJECT = "json_object"  # any JSON object; the source is empty
    JSON_SCHEMA = "json_schema"  # the source is the schema as JSON text
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"  # llama.cpp's


@dataclass(frozen=True)
class GrammarSpec:
    """What the reply's text must be, from its first token on or behind the end of its reasoning."""

    kind: GrammarKind
    source: str
    begins_after: int | None = None  # token id, of `</think>` say, behind which it holds; None: from the first token on
    named_rules: tuple[tuple[str, str], ...] = ()  # of Lark: a rule, and what to call it and those made from it
    reasoning: tuple[int, int] | None = None  # opening and closing token of reasoning that may come first
