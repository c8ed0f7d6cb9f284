"""Markers are found by their token where they have one and by their text where not; nothing else is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.text.lexemes import Lexeme, MarkerLexer
from tests.text.reply_tools import MARKED, PYTHON_TAG, SPELLED, tokens

MARKERS = ["<think>", "</think>", "<function="]


def lexemes(tokenizer, ids: list[int]) -> list[Lexeme]:
    """With neighbouring pieces of text joined."""
    lexer = MarkerLexer(tokenizer, MARKERS)
    found = [lexeme for id_ in ids for lexeme in lexer.feed(id_)] + lexer.finish()
    joined: list[Lexeme] = []
    for lexeme in found:
        assert lexeme.text
        if joined and not lexeme.is_marker and not joined[-1].is_marker:
            joined[-1] = Lexeme(joined[-1].text + lexeme.text, False)
        else:
            joined.append(lexeme)
    assert lexer.characters == sum(len(lexeme.text) for lexeme in joined)
    return joined


@pytest.mark.parametrize("tokenizer", [MARKED, SPELLED], ids=["marked", "spelled"])
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*MARKERS, "<", "<th", "<functio", "a", " ", "\U0001f6a2"]), max_size=8),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_markers_and_text_are_told_apart_however_they_are_cut(tokenizer, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    found = lexemes(tokenizer, tokens(tokenizer, text, cuts))
    assert "".join(lexeme.text for lexeme in found) == text
    assert found == lexemes(tokenizer, tokens(tokenizer, text))
    assert all(lexeme.text in MARKERS for lexeme in found if lexeme.is_marker)
    assert not any(marker in lexeme.text for lexeme in found if not lexeme.is_marker for marker in MARKERS)


def test_a_marker_that_is_a_token_is_not_found_in_ordinary_tokens() -> None:
    ids = MARKED.encode("a </think> b")
    assert lexemes(MARKED, ids) == [Lexeme("a </think> b", False)]
    assert lexemes(SPELLED, SPELLED.encode("a</think>")) == [Lexeme("a", False), Lexeme("</think>", True)]


def test_only_what_may_become_a_marker_is_held_back() -> None:
    lexer = MarkerLexer(SPELLED, MARKERS)
    said = [[lexeme.text for id_ in SPELLED.encode(c) for lexeme in lexer.feed(id_)] for c in "a<thin!<b"]
    assert said == [["a"], [], [], [], [], [], ["<thin!"], [], ["<b"]]


def test_half_a_character_in_front_of_a_marker_is_not_lost() -> None:
    ids = [MARKED.encode("\U0001f6a2")[0], *tokens(MARKED, "<think>")]
    assert lexemes(MARKED, ids) == [Lexeme("\ufffd", False), Lexeme("<think>", True)]


def test_a_special_token_is_text_where_it_is_asked_for() -> None:
    lexer, tag = MarkerLexer(MARKED, MARKERS), MARKED.token_id(PYTHON_TAG)
    assert lexer.feed(tag) == [] and lexer.characters == 0
    assert lexer.feed(tag, shows_special=True) == [Lexeme(PYTHON_TAG, False)]
