"""A tokenizer written into a GGUF file and read back encodes as the directory's own; what cannot be is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import models_shipped
from strata.errors import ConfigError, TextError
from strata.text.gguf_tokenizer import tokenizer_from_gguf
from strata.text.gguf_vocabulary import tokenizer_pairs, without_tokenizer
from strata.text.loading import tokenizer_of
from strata.text.pre_tokenizers import PRE_TOKENIZERS, find_pre_tokenizer, recognize_pre_tokenizer
from strata.text.tokenizer import Tokenizer, load_tokenizer
from strata.weights.gguf import read_file
from strata.weights.gguf_metadata import Metadata
from strata.weights.gguf_writer import Pair
from strata.weights.opening import open_model
from tests.text.small_tokenizers import byte_level
from tests.weights.gguf_files import write

SHIPPED = models_shipped.default_path()
PIECES = [
    "<|im_end|>",
    "<think>",
    "</tool_call>",
    "it's",
    " 123",
    "\n\n",
    "  ",
    "é",
    "e\u0301",
    "世界",
    "🎉",
    "Ġ",
    "\t",
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=8).map("".join)


def written(path: Path, pairs: list[Pair]) -> Metadata:
    path.unlink(missing_ok=True)
    return read_file(write(path, pairs)).metadata


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return load_tokenizer(SHIPPED), tokenizer_from_gguf(written(path, tokenizer_pairs(SHIPPED, 8192)))


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, control=st.booleans())
def test_any_text_has_the_same_ids(both: tuple[Tokenizer, Tokenizer], text: str, control: bool) -> None:
    ours, theirs = both
    ids = ours.encode(text, control_tokens=control)
    assert theirs.encode(text, control_tokens=control) == ids
    assert theirs.decode(ids, show_special=True) == ours.decode(ids, show_special=True)


def test_chats_and_end_tokens_are_the_same(both: tuple[Tokenizer, Tokenizer]) -> None:
    ours, theirs = both
    messages = [{"role": "user", "content": "What is <|im_end|>?"}]
    assert theirs.encode_chat(messages) == ours.encode_chat(messages)
    assert theirs.eos_token_ids == ours.eos_token_ids
    assert theirs.vocabulary_size == ours.vocabulary_size
    assert theirs.added_tokens == ours.added_tokens


def model_like(folder: Path, cut: dict[str, Any], normalizer: Any, **model: Any) -> Path:
    """A directory with the small byte-level tokenizer, cut and normalized in another way."""
    description = json.loads(json.dumps(byte_level()))
    description |= {"pre_tokenizer": cut, "normalizer": normalizer}
    description["model"] |= model
    (folder / "tokenizer.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize("cut", PRE_TOKENIZERS, ids=lambda cut: cut.names[0])
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_every_way_to_cut_words_comes_back(
    tmp_path_factory: pytest.TempPathFactory, cut: Any, texts: list[str]
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"cut-{cut.names[0]}"
    if not folder.exists():
        folder.mkdir()
        model_like(folder, cut.as_json(), {"type": "NFC"} if cut.normalizer else None, ignore_merges=cut.ignores_merges)
        written(folder / "m.gguf", tokenizer_pairs(folder, 700))
    metadata = read_file(folder / "m.gguf").metadata
    assert metadata.text("tokenizer.ggml.pre") == cut.names[0]
    assert metadata.count("tokenizer.ggml.tokens") == 700
    ours, theirs = load_tokenizer(folder), tokenizer_from_gguf(metadata)
    for text in texts:
        assert theirs.encode(text) == ours.encode(text)
    assert theirs.vocabulary_size == ours.vocabulary_size


def test_names_of_published_files_are_found() -> None:
    assert find_pre_tokenizer("llama-bpe") is not None
    assert find_pre_tokenizer("nothing") is None
    split = {"type": "Split", "pattern": {"String": "x"}, "behavior": "Isolated", "invert": False}
    assert recognize_pre_tokenizer({"type": "Sequence", "pretokenizers": [split]}) is None
    assert recognize_pre_tokenizer(None) is None


def test_a_start_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    start = [Pair("tokenizer.ggml.bos_token_id", "u32", 1)]
    pairs = [pair for pair in tokenizer_pairs(SHIPPED, 8192) if "add_bos" not in pair.key] + start
    plain = tokenizer_from_gguf(written(tmp_path / "a.gguf", pairs))
    assert plain.encode("hello", add_special_tokens=True) == plain.encode("hello")
    adds = [*pairs, Pair("tokenizer.ggml.add_bos_token", "bool", True)]
    adding = tokenizer_from_gguf(written(tmp_path / "b.gguf", adds))
    assert adding.encode("hello", add_special_tokens=True) == [1, *plain.encode("hello")]


def changed(key: str, kind: str, value: Any) -> list[Pair]:
    """The shipped tokenizer's metadata with one key changed."""
    full = f"tokenizer.ggml.{key}"
    return [pair for pair in tokenizer_pairs(SHIPPED, 8192) if pair.key != full] + [Pair(full, kind, value)]


BROKEN = {
    "sentencepiece": (lambda: changed("model", "text", "llama"), "kind 'llama', which is not supported"),
    "way to cut": (lambda: changed("pre", "text", "tekken"), "cut as 'tekken' does, .* supported: qwen2"),
    "types": (lambda: changed("token_type", "[i32]", [1]), "8,192 tokens and 1 token types"),
    "twice": (lambda: changed("tokens", "[text]", ["a"] * 8192), "the token 'a' twice"),
    "end": (lambda: changed("eos_token_id", "u32", 9999), "eos_token_id = 9,999 is outside"),
    "merges": (lambda: changed("merges", "[text]", ["x"]), "does not describe a tokenizer"),
    "none": (without_tokenizer, "kind 'none'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_tokenizer_that_cannot_be_is_refused(tmp_path: Path, case: str) -> None:
    pairs, words = BROKEN[case]
    with pytest.raises(TextError, match=words) as caught:
        tokenizer_from_gguf(written(tmp_path / "m.gguf", pairs()))
    assert "\n" not in str(caught.value)


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no metadata key tokenizer\.ggml\.model"):
        tokenizer_from_gguf(written(tmp_path / "m.gguf", []))


def test_what_the_format_cannot_say_is_not_written(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(TextError, match="they do not belong together"):
        tokenizer_pairs(tmp_path / "m", 100)
    model_like(tmp_path, {"type": "Whitespace"}, None)
    with pytest.raises(TextError, match="not a byte-level tokenizer that cuts words as one of these"):
        tokenizer_pairs(tmp_path, 700)
    model_like(tmp_path, PRE_TOKENIZERS[0].as_json(), {"type": "Lowercase"})
    with pytest.raises(TextError, match="normalizer 'Lowercase'"):
        tokenizer_pairs(tmp_path, 700)


def test_a_directory_has_its_own_tokenizer() -> None:
    assert tokenizer_of(open_model(SHIPPED)).vocabulary_size == 8192
