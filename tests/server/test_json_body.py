"""Bodies that two readers could understand differently are refused with 400 and a sentence, and nothing is a 500."""

import pytest

from strata.server.errors import ApiError
from strata.server.json_body import DEEPEST, parse


def test_json_is_read_as_usual() -> None:
    assert parse('{"a": [1, 2.5, true, null, "ü"], "b": {}}'.encode()) == {"a": [1, 2.5, True, None, "ü"], "b": {}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "line 1, column 2"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "larger than a double"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' stands twice"),
        (b'{"a": "\xff"}', "byte 0xff at offset 7"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair at character 0"),
        (b'{"\\udfff": 1}', "half of a surrogate pair"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b"[" * (DEEPEST + 2) + b"]" * (DEEPEST + 2), "nested deeper"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * 100_000, "nested deeper"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
    ],
)
def test_what_is_unclear_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words) as refusal:
        parse(body)
    assert refusal.value.status == 400


def test_the_deepest_body_that_works_works() -> None:
    assert parse(b"[" * DEEPEST + b"]" * DEEPEST)
