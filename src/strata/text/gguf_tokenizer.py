"""A tokenizer from the metadata of a GGUF file: vocabulary, merges and template become a tokenizer.json in memory.

Knows the keys `tokenizer.*`; how text is encoded is the tokenizer's business, how words are cut `pre_tokenizers`'.
"""

from collections.abc import Iterable
from typing import Any

from strata.engine.messages import TokenizerFiles
from strata.errors import TextError
from strata.text.pre_tokenizers import PreTokenizer, find_pre_tokenizer, known_names
from strata.text.tokenizer import Tokenizer, tokenizer_from_files
from strata.weights.gguf_metadata import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# Files of Strata say which normalizer stands before the vocabulary ("NFC" or ""): no published key does.
NORMALIZER_KEY = "tokenizer.strata.normalizer"
_PREFIX = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens that end a turn or a text wherever they exist; many files name only one of theirs as the end.
_END_LITERALS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>")


def tokenizer_from_gguf(metadata: Metadata) -> Tokenizer:
    """The tokenizer of a file; errors as in `tokenizer_files_from_gguf`."""
    return tokenizer_from_files(tokenizer_files_from_gguf(metadata))


def tokenizer_files_from_gguf(metadata: Metadata) -> TokenizerFiles:
    """Vocabulary and chat template of a file as the files of a directory would say it.

    Raises TextError for a kind of tokenizer or a way of cutting words that is not supported and for a vocabulary that
    contradicts itself; ConfigError for a key that is missing or of another kind.
    """
    where = str(metadata.file)
    model = metadata.text(f"{_PREFIX}model")
    if model != "gpt2":
        raise TextError(
            f"{where} has a tokenizer of the kind {model[:60]!r}, which is not supported; supported: 'gpt2'"
        )
    name = metadata.text(f"{_PREFIX}pre", "default")
    cut = find_pre_tokenizer(name)
    if cut is None:
        raise TextError(
            f"{where}: words are cut as {name[:60]!r} does, which is not supported; supported: {known_names()}"
        )
    tokens = metadata.texts(f"{_PREFIX}tokens")
    kinds = metadata.integers(f"{_PREFIX}token_type", [NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise TextError(f"{where} has {len(tokens):,} tokens and {len(kinds):,} token types")
    start = _token_id(metadata, "bos_token_id", tokens)
    adds_start = start is not None and metadata.flag(f"{_PREFIX}add_bos_token", cut.adds_start)
    description = _description(where, tokens, kinds, metadata.texts(f"{_PREFIX}merges", []), cut)
    description["normalizer"] = _normalizer(metadata.text(NORMALIZER_KEY, cut.normalizer or ""), where)
    description["post_processor"] = _start_adder(tokens[start], start) if start is not None and adds_start else None
    specials = {f"{key}_token": _literal(metadata, f"{id_key}_token_id", tokens) for key, id_key in _NAMED.items()}
    return TokenizerFiles(
        description,
        {name: literal for name, literal in specials.items() if literal is not None},
        end_of_text_ids=tuple(sorted(_end_ids(metadata, tokens, kinds))),
        chat_template=metadata.text("tokenizer.chat_template", None),
        where=where,
    )


_NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def _description(
    where: str, tokens: list[str], kinds: list[int], merges: list[str], cut: PreTokenizer
) -> dict[str, Any]:
    """The contents of a tokenizer.json. Unused tokens fill a vocabulary up and have no text."""
    vocabulary = {text: index for index, (text, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED}
    if len(vocabulary) != len(tokens) - kinds.count(UNUSED):
        twice = next(text for index, text in enumerate(tokens) if kinds[index] != UNUSED and vocabulary[text] != index)
        raise TextError(f"{where}: the vocabulary has the token {twice[:60]!r} twice")
    added = [
        _added(index, tokens[index], special=kind != USER_DEFINED)
        for index, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED, UNKNOWN)
    ]
    model = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": merges,
        "ignore_merges": cut.ignores_merges,
        "byte_fallback": False,
        "fuse_unk": False,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": cut.as_json(),
        "decoder": byte_level,
        "model": model,
    }


def _added(token_id: int, text: str, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": special}


def _normalizer(name: str, where: str) -> dict[str, Any] | None:
    if name not in ("", "NFC"):
        raise TextError(f"{where}: {NORMALIZER_KEY} = {name[:60]!r} is not supported; supported: 'NFC' or ''")
    return {"type": name} if name else None


def _start_adder(literal: str, token_id: int) -> dict[str, Any]:
    """A post-processor that puts the start token in front of a text."""
    token, text = {"SpecialToken": {"id": literal, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [token, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {literal: {"id": literal, "ids": [token_id], "tokens": [literal]}},
    }


def _token_id(metadata: Metadata, key: str, tokens: list[str]) -> int | None:
    """The id under a key, None if the file has none; a number outside of the vocabulary is refused."""
    token_id = metadata.integer(_PREFIX + key, None)
    if token_id is not None and token_id >= len(tokens):
        if token_id == 0xFFFFFFFF:  # how some files write that there is none
            return None
        raise TextError(f"{metadata.file}: {_PREFIX}{key} = {token_id:,} is outside of the {len(tokens):,} tokens")
    return token_id


def _literal(metadata: Metadata, key: str, tokens: list[str]) -> str | None:
    token_id = _token_id(metadata, key, tokens)
    return None if token_id is None else tokens[token_id]


def _end_ids(metadata: Metadata, tokens: list[str], kinds: list[int]) -> Iterable[int]:
    named = {_token_id(metadata, key, tokens) for key in _END_KEYS}
    known = {index for index, kind in enumerate(kinds) if kind == CONTROL and tokens[index] in _END_LITERALS}
    return known | {token_id for token_id in named if token_id is not None}
