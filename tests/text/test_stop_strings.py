"""Stop strings are found wherever the text is cut, and no more is held back than may still become one."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import RequestError
from strata.text.stop_strings import StopMatcher

SHORT = st.text("ab", min_size=1, max_size=5)


def cut(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


def by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The stop that ends first, of those the longest; found by trying every end."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=500, deadline=None)
@given(st.text("abc", max_size=30), st.lists(SHORT, max_size=4), st.lists(st.integers(0, 30), max_size=8))
def test_any_cut_gives_what_the_definition_says(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown, found = "", None
    fed = ""
    for piece in cut(text, cuts):
        result = matcher.feed(piece)
        shown += result.text
        fed += piece
        found = result.stop
        if found:
            break
        # Held back is exactly the longest end of the text that begins some stop.
        held = max((n for stop in stops for n in range(len(stop)) if fed.endswith(stop[:n])), default=0)
        assert len(fed) - len(shown) == held
    if found is None:
        shown += matcher.finish()
    assert (shown, found) == by_definition(text, stops)


def test_after_a_stop_nothing_more_comes_out() -> None:
    matcher = StopMatcher(["\n\n"])
    assert matcher.feed("a\n").text == "a"
    result = matcher.feed("\nb")
    assert (result.text, result.stop, matcher.found) == ("", "\n\n", "\n\n")
    assert matcher.feed("c").text == matcher.finish() == ""


def test_text_that_did_not_become_a_stop_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("the EN").text == "the "
    assert matcher.finish() == "EN"


def test_a_long_stop_costs_no_more_per_character() -> None:
    matcher = StopMatcher(["a" * 10_000 + "b"])
    shown = "".join(matcher.feed("a").text for _ in range(30_000))
    assert len(shown) == 20_000


def test_empty_stop_strings_are_refused() -> None:
    with pytest.raises(RequestError, match="at least one character"):
        StopMatcher(["a", ""])
