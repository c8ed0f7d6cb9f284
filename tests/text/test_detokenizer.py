"""A stream of ids becomes the text of the whole, in pieces that never hold half a character."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, library_tokenizer, metaspace_with_bytes, unigram_with_literals

BYTE_LEVEL = Tokenizer(byte_level())
METASPACE = Tokenizer(metaspace_with_bytes())
UNIGRAM = Tokenizer(unigram_with_literals())
BYTE_LEVEL_LIBRARY = library_tokenizer(byte_level())
METASPACE_LIBRARY = library_tokenizer(metaspace_with_bytes())
UNIGRAM_LIBRARY = library_tokenizer(unigram_with_literals())
BYTES = METASPACE.encode("\x00")[-1]  # the id of <0x00>; the other bytes follow it

WHOLE_CHARACTERS = st.one_of(
    st.integers(BYTES + 256, METASPACE.vocabulary_size - 1),
    st.integers(1, 2),
    st.sampled_from([BYTES + 32, BYTES + 65]),
)


def pieces(tokenizer: Tokenizer, ids: list[int], show_special: bool = False) -> list[str]:
    detokenizer = tokenizer.detokenizer(show_special)
    return [*map(detokenizer.feed, ids), detokenizer.finish()]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, BYTE_LEVEL.vocabulary_size - 1), max_size=30), st.booleans())
def test_byte_level_pieces_join_to_the_librarys_text_for_any_ids(ids: list[int], show: bool) -> None:
    expected = BYTE_LEVEL_LIBRARY.decode(ids, skip_special_tokens=not show)
    assert "".join(pieces(BYTE_LEVEL, ids, show)) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@example("🎉👩‍👩‍👧 世界\ufffd\ufffd")
def test_pieces_hold_whole_characters_only(text: str) -> None:
    for tokenizer in (BYTE_LEVEL, METASPACE):
        ids = tokenizer.encode(text)
        parts = pieces(tokenizer, ids)
        assert "".join(parts) == tokenizer.decode(ids)
        assert parts[-1] == ""
        if "\ufffd" not in text:
            assert not any("\ufffd" in part for part in parts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([" ", "hello", "world", "é", "世", "🎉", "q", "\n", "  "]), max_size=12).map("".join))
def test_metaspace_with_bytes_joins_to_the_librarys_text(text: str) -> None:
    ids = METASPACE.encode(text)
    assert "".join(pieces(METASPACE, ids)) == METASPACE_LIBRARY.decode(ids) == text


@settings(max_examples=300, deadline=None)
@given(st.lists(WHOLE_CHARACTERS, max_size=20), st.booleans())
def test_metaspace_joins_to_the_librarys_text_for_any_ids_of_whole_characters(ids: list[int], show: bool) -> None:
    assert "".join(pieces(METASPACE, ids, show)) == METASPACE_LIBRARY.decode(ids, skip_special_tokens=not show)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, UNIGRAM.vocabulary_size - 1), max_size=20), st.booleans())
def test_other_decoders_join_to_the_librarys_text(ids: list[int], show: bool) -> None:
    assert "".join(pieces(UNIGRAM, ids, show)) == UNIGRAM_LIBRARY.decode(ids, skip_special_tokens=not show)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=12))
def test_byte_tokens_follow_pythons_rule_for_invalid_bytes(data: bytes) -> None:
    hello = METASPACE.encode("hello")
    ids = [*hello, *(BYTES + byte for byte in data), *hello]
    assert "".join(pieces(METASPACE, ids)) == "hello" + data.decode("utf-8", "replace") + " hello"


def test_incomplete_characters_are_held_until_the_end() -> None:
    ids = [BYTES + byte for byte in "世".encode()]
    assert pieces(METASPACE, ids) == ["", "", "世", ""]
    assert pieces(METASPACE, ids[:2]) == ["", "", "\ufffd"]
    first = BYTE_LEVEL_LIBRARY.get_vocab()["ä"]  # stands for the byte 0xE4
    assert pieces(BYTE_LEVEL, [first]) == ["", "\ufffd"]


def test_special_tokens_are_hidden_or_shown() -> None:
    ids = BYTE_LEVEL.encode("a<|im_end|>b<think>", control_tokens=True)
    assert BYTE_LEVEL.decode(ids) == "ab<think>"
    assert BYTE_LEVEL.decode(ids, show_special=True) == "a<|im_end|>b<think>"


def test_ids_without_a_token_are_no_text() -> None:
    for tokenizer in (BYTE_LEVEL, METASPACE):
        assert tokenizer.decode([tokenizer.vocabulary_size + 7, -1, 1 << 40]) == ""


def test_token_bytes_of_a_text_join_to_its_bytes() -> None:
    text = "hello hello 世界\n"
    ids = BYTE_LEVEL.encode(text)
    assert b"".join(map(BYTE_LEVEL.token_bytes, ids)) == text.encode()
    assert b"".join(map(METASPACE.token_bytes, METASPACE.encode(text))) == (" " + text).encode()
    assert BYTE_LEVEL.token_bytes(2) == b"<|im_end|>"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, METASPACE], ids=["byte level", "metaspace"])
def test_cost_of_an_id_does_not_grow_with_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello world é世🎉 " * 4000)

    def seconds(part: list[int]) -> float:
        started = time.perf_counter()
        pieces(tokenizer, part)
        return time.perf_counter() - started

    short = min(seconds(ids[: len(ids) // 20]) for _ in range(3))
    assert seconds(ids) < 20 * short * 4
