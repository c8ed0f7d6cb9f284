"""How the card's figures are counted. Knows small texts; loads no model."""

import numpy as np
import pytest

from strata import Usage
from training.card_text import flow, least_used, table
from training.measure import (
    OVERLAP,
    WINDOW,
    ReplyCounts,
    edit_distance,
    gloss_of,
    random_passages,
    similarity,
    windows_of,
)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "", 0), ("port", "", 4), ("kitten", "sitting", 3), ("ab", "ba", 2), ("port", "port", 0)],
)
def test_edit_distance(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == distance


def test_similarity_is_a_share_of_the_longer_text() -> None:
    assert similarity("a sheltered port", "a sheltered port") == 1
    assert similarity("abcd", "abcdefgh") == 0.5
    assert similarity("", "") == 1


def test_the_gloss_stands_behind_the_word_and_its_part_of_speech() -> None:
    assert gloss_of("harbour (noun): a port (sheltered): safe") == "a port (sheltered): safe"
    assert gloss_of("no head at all") == "no head at all"


@pytest.mark.parametrize("tokens", [2, 100, WINDOW, WINDOW + 1, 2 * WINDOW - OVERLAP, 25_669])
def test_windows_count_every_token_but_the_first_once(tokens: int) -> None:
    counted = []
    for piece, first in windows_of(range(tokens)):
        assert len(piece) <= WINDOW
        counted += piece[first:]
    assert counted == list(range(1, tokens))


def usage(tokens: int, windows: int, drafted: int, accepted: int) -> Usage:
    return Usage(5, tokens, windows, drafted, accepted, 0.0, 0.0)


def test_windows_are_counted_over_all_replies() -> None:
    counts = ReplyCounts([], [])
    counts.add(usage(13, 4, 12, 8), range(13))
    counts.add(usage(21, 5, 15, 15), [1, 2, 3, 4, 5, 6, 7, 8, 9] * 2)
    summary = counts.summary()
    assert summary.tokens_per_window == pytest.approx(34 / 9)
    assert summary.without_first == pytest.approx(32 / 9)
    assert summary.accepted_drafts == pytest.approx(23 / 27)
    assert summary.going_round == 0.5
    assert summary.tokens_per_window_others == pytest.approx(13 / 4)


def test_passages_are_pieces_of_documents() -> None:
    documents = [[0, *range(10, 40)], [0, *range(100, 110)], [0, *range(1000, 1300)]]
    for passage in random_passages(documents, 50, 12, 20):
        assert 12 <= len(passage) <= 20
        assert list(np.diff(passage)) == [1] * (len(passage) - 1)


def test_the_least_used_expert_counts_both_kinds_of_text() -> None:
    routing = {"manuals": [[1.0, 2.0, 0.0], [1.0, 1.0, 1.0]], "dictionary": [[1.0, 0.4, 1.6], [1.0, 1.0, 1.0]]}
    assert least_used(routing) == [0.8, 1.0]


def test_text_flows_and_tables_stand() -> None:
    text = flow("\n# A heading\n\nsome\nwords\n\n    code  as is\n\n* one\n  item\n* " + "long " * 40)
    assert text.splitlines()[:6] == ["# A heading", "", "some words", "", "    code  as is", ""]
    assert text.splitlines()[6] == "* one item"
    assert all(len(line) <= 120 for line in text.splitlines())
    assert table(["", "b"], [("c", "d")]) == "|  | b |\n|---|---|\n| c | d |"
