"""Rates in a reply's usage are counted from the tokens that were decoded, and never divide by nothing."""

from strata.types import Usage


def usage(completion_tokens: int, decode_seconds: float) -> Usage:
    return Usage(10, completion_tokens, 1, 0, 0, read_seconds=2.0, decode_seconds=decode_seconds)


def test_first_token_belongs_to_reading() -> None:
    assert usage(11, 2.0).tokens_per_second == 5.0
    assert usage(11, 2.0).prompt_tokens_per_second == 5.0


def test_no_rate_without_a_second_token() -> None:
    assert usage(1, 0.0).tokens_per_second == 0.0
    assert usage(0, 0.0).tokens_per_second == 0.0
