"""JSON is taken as it comes: any cut gives the value that json.loads gives, and what is no JSON is broken early."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.text.tool_calls.json_value import DEEPEST, JsonValue, string_of
from tests.text.reply_tools import pieces

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def take(text: str, cuts: list[int]) -> tuple[JsonValue, str, str]:
    """The reader, what it gave and what it left."""
    value, given, waiting = JsonValue(), "", ""
    for piece in pieces(text, cuts):
        waiting += piece
        found, behind = value.take(waiting, 0)
        given, waiting = given + found, waiting[behind:]
    return value, given, waiting


@settings(max_examples=200, deadline=None)
@given(
    VALUES,
    st.booleans(),
    st.sampled_from([None, 1]),
    st.lists(st.integers(0, 60), max_size=8),
    st.text(" \n}],a", min_size=1),
)
def test_any_value_cut_anywhere_is_taken_whole(
    value: Any, ascii: bool, indent: Any, cuts: list[int], rest: str
) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    rest = " " + rest
    reader, given, left = take(text + rest, cuts)
    assert reader.is_done and not reader.is_broken
    assert (given, left) == (text, rest)


@settings(max_examples=300, deadline=None)
@given(st.text('{}[]:,"\\u0019e.-+truefalsnTN \n\x00', max_size=20), st.lists(st.integers(0, 20), max_size=6))
def test_what_is_given_of_any_text_does_not_depend_on_cuts_and_is_json_if_done(text: str, cuts: list[int]) -> None:
    reader, given, left = take(text, [])
    again, given_again, left_again = take(text, cuts)
    assert (again.is_done, again.is_broken, given_again, left_again) == (reader.is_done, reader.is_broken, given, left)
    if reader.is_done:
        json.loads(given)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('"a\nb\x00"', r'"a\nb\u0000"'),
        (r'"\d\.\u12x\""', r'"\\d\\.\\u12x\""'),
        ("[True, False, None]", "[true, false, null]"),
    ],
)
def test_slips_that_leave_no_doubt_are_put_right(text: str, given: str) -> None:
    reader, found, left = take(text, [])
    assert (reader.is_done, found, left) == (True, given, "")
    json.loads(given)


@pytest.mark.parametrize(
    "text", ["{a", "{'a'", "[1,]", '{"a" 1', '{"a": 1,}', "[01,", "+1 ", "NaN ", "[1 2", "}", "tru "]
)
def test_what_is_no_json_is_broken(text: str) -> None:
    assert take(text, [])[0].is_broken


def test_depth_has_an_end() -> None:
    assert not take("[" * DEEPEST, [])[0].is_broken
    assert take("[" * (DEEPEST + 1), [])[0].is_broken


def test_a_string_holds_no_half_of_a_surrogate_pair() -> None:
    assert string_of(r'"\ud83d\ude00 \ud83d"') == "\U0001f600 \ufffd"
