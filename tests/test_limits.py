"""What a setting takes is said in words, and text becomes a value only where nothing is lost."""

from pathlib import Path

import pytest

from strata.limits import Limits, convert


@pytest.mark.parametrize(
    ("limits", "kind", "words"),
    [
        (Limits("", choices=("a", "b")), str, "one of a, b"),
        (Limits(""), bool, "true or false"),
        (Limits(""), Path, "a path"),
        (Limits("", minimum=64, maximum=128, multiple_of=64), int, "a multiple of 64 from 64 to 128"),
        (Limits("", above=0, maximum=1), float, "a number above 0 and of at most 1"),
    ],
)
def test_limits_in_words(limits: Limits, kind: type, words: str) -> None:
    assert limits.in_words(kind) == words


def test_what_lies_within() -> None:
    limits = Limits("", above=0, maximum=128, multiple_of=64)
    assert [value for value in (-64, 0, 63, 64, 128, 192) if limits.allow(value)] == [64, 128]
    assert Limits("", choices=("a",)).allow("a") and not Limits("", choices=("a",)).allow("b")


def test_nothing_is_lost() -> None:
    assert [convert("7", int), convert(7.0, int), convert("0.5", float), convert("true", bool)] == [7, 7, 0.5, True]
    assert [convert(7.5, int), convert(True, int), convert("nan", float), convert("yes", bool), convert(1, str)] == [
        None
    ] * 5
