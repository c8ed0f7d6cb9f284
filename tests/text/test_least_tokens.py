"""The bound never says more tokens than there are, and says nothing where a tokenizer may lose text."""

import random

import pytest

import strata.models_shipped
from strata.text.least_tokens import LeastTokens
from strata.text.tokenizer import Tokenizer, load_tokenizer

BYTES = [bytes((byte,)) for byte in range(256)]
LOSSLESS = {"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return load_tokenizer(strata.models_shipped.default_path())


def test_no_text_has_fewer_tokens(shipped: Tokenizer) -> None:
    choose = random.Random(5)
    longest = max(map(shipped.token_bytes, range(shipped.vocabulary_size)), key=len).decode("utf-8", "ignore")
    for piece in ("word ", " " * 9, "\U0001f600", "e\u0301", longest, "<|im_end|>"):
        for count in (1, 7, 400):
            text = piece * count + choose.choice(("", "a", "\n"))
            assert 1 <= shipped.least_tokens(text) <= len(shipped.encode(text, control_tokens=True))
    assert shipped.least_tokens("") == 0


def test_it_is_the_bytes_by_the_longest_token_of_all() -> None:
    assert LeastTokens(LOSSLESS, [*BYTES, b"abcd"], ()).of("a" * 9) == 3
    assert LeastTokens(LOSSLESS, [*BYTES, b"abcd"], ("<|end|>",)).of("a" * 9) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"type": "Unigram"}},
        {"model": {"type": "BPE", "fuse_unk": True}},
        {"normalizer": {"type": "Strip"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "WhitespaceSplit"}]}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Split", "behavior": "Removed"}, {"type": "ByteLevel"}],
            }
        },
        {"added_tokens": [{"content": "<a>", "lstrip": True}]},
    ],
)
def test_nothing_is_said_where_text_may_be_lost(changed: dict[str, object]) -> None:
    assert LeastTokens(LOSSLESS | changed, BYTES, ()).of("a" * 9) == 0


def test_nothing_is_said_where_a_byte_has_no_token_or_nfc_shortens() -> None:
    assert LeastTokens(LOSSLESS, BYTES[1:], ()).of("aaa") == 0
    nfc = LeastTokens(LOSSLESS | {"normalizer": {"type": "NFC"}}, BYTES, ())
    assert (nfc.of("\u00e9"), nfc.of("e\u0301")) == (2, 0)
