"""Small tokenizers of every kind that the text tests need, as the contents of tokenizer.json. Knows no test."""

import functools
import json
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CORPUS = [
    "The harbour is a sheltered part of the sea, deep enough for ships. She said: it's <b>bold</b> & fine.",
    "def harbour(ships):\n    return [ship for ship in ships if ship.safe]  # <- list\n\n\n",
    "Ein Schiff läuft in den Hafen ein; 世界 你好 🎉 naïve façade — user assistant system think tool call",
] * 4


@functools.cache
def byte_level() -> dict[str, Any]:
    """Byte-level BPE as the Qwen families have it; special tokens stand in the model's vocabulary too."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKUP])
    return json.loads(tokenizer.to_str())


@functools.cache
def metaspace_with_bytes() -> dict[str, Any]:
    """BPE with spaces as U+2581 and characters outside of it as bytes (the layout of Llama 2); a space in front."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdehilnorstuw.", "he", "▁he", "ll", "llo", "▁hello", "wo", "▁wo", "rl", "rld", "▁world"]
    merges = [("h", "e"), ("▁", "he"), ("l", "l"), ("ll", "o"), ("▁he", "llo"), ("w", "o"), ("▁", "wo"), ("r", "l")]
    merges += [("rl", "d"), ("▁wo", "rld")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return json.loads(tokenizer.to_str())


@functools.cache
def unigram_with_literals() -> dict[str, Any]:
    """A model that would find `</s>` in plain text by itself, since its vocabulary holds it, behind NFKC."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("<tool>", 0.0), ("▁", -2.0)]
    pieces += [(character, -3.0) for character in "<>/abcdefghijklmnopqrstuvwxyz"]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
    return json.loads(tokenizer.to_str())


def library_tokenizer(description: dict[str, Any]) -> tokenizers.Tokenizer:
    """The `tokenizers` library's own reading of a description: the other road to the same ids."""
    return tokenizers.Tokenizer.from_str(json.dumps(description))
