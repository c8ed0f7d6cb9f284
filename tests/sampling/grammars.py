"""A small vocabulary for tests of grammars, and what they ask of one. Knows bytes; no tokenizer."""

import functools
from collections.abc import Iterable

import numpy as np

from strata.sampling.grammar import Grammar
from strata.sampling.grammar_compile import GrammarFactory, Vocabulary
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.token_mask import TokenMask, allows

PIECES = (b'{"', b'":', b'"a"', b"true", b"12", b"ab", b"ab", b"\n\n", b', "', b"]}", "é".encode(), b"", b"hello world")
THINK_END = 256 + len(PIECES)
TOOL = THINK_END + 1
END = THINK_END + 2
OTHER_END = THINK_END + 3
WIDTH = OTHER_END + 30  # padding, as models have it


def vocabulary() -> Vocabulary:
    """Every byte by its own id, then pieces, two control tokens and two ends of text."""
    tokens = [bytes([byte]) for byte in range(256)] + list(PIECES) + [b"</think>", b"<tool>", b"<end>", b"<other_end>"]
    special = frozenset({THINK_END, TOOL, END, OTHER_END})
    return Vocabulary(tokens, special, frozenset({END, OTHER_END}), WIDTH)


@functools.cache
def factory() -> GrammarFactory:
    """One for all tests of a process."""
    return GrammarFactory(vocabulary)


def compiled(kind: GrammarKind, source: str, begins_after: int | None = None) -> Grammar:
    """A fresh grammar."""
    return factory().compile(GrammarSpec(kind, source, begins_after))


def regex(source: str, begins_after: int | None = None) -> Grammar:
    """A fresh grammar of a regular expression."""
    return compiled(GrammarKind.REGEX, source, begins_after)


def allowed_ids(mask: TokenMask) -> list[int]:
    """The ids that a mask allows, rising."""
    return [int(token_id) for token_id in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


def next_texts(grammar: Grammar) -> set[bytes]:
    """The texts of the tokens that may come."""
    return {vocabulary().tokens[token_id] for token_id in allowed_ids(grammar.masks()[0])}


def follow(grammar: Grammar, token_ids: Iterable[int]) -> bool:
    """Commit tokens as long as they are allowed; whether all were."""
    for token_id in token_ids:
        if not allows(grammar.masks()[0], token_id):
            return False
        grammar.commit([token_id])
    return True


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a fresh grammar takes a whole text, byte by byte, and may end behind it."""
    return follow(grammar, text.encode()) and (grammar.is_finished or allows(grammar.masks()[0], END))
