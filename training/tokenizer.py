"""Knows how the shipped model's byte-level BPE is trained and written, and the form of a chat.
Does not know where text comes from, or the model.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY_SIZE = 8_192
CONTEXT_TOKENS = 65_536
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)  # ids 0, 1, 2: never shown
MARK_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")  # ids 3..8

# The splitting rule of the Qwen2 family, to the letter: a word takes one character before it (usually its blank),
# digits stand alone, punctuation and line ends run together. Readers that know "qwen2" know this tokenizer.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Longer pieces would be rules (----) and verbatim repeats rather than words.
MAX_PIECE_BYTES = 16
# The dictionary is half of what the model reads but a twentieth of the text, so its words are counted more often.
DICTIONARY_REPEATS = 4


def train_tokenizer(documents: Iterable[str], chats: Iterable[tuple[str, str]]) -> Tokenizer:
    """A byte-level BPE of VOCABULARY_SIZE ids over the documents and the dictionary's (question, answer) pairs.

    The ids of CONTROL_TOKENS and MARK_TOKENS come first, then the 256 bytes, then merges in the order learnt, so
    every string round-trips. No normalizer: text that is not in composed form (NFC) must come back as it went in.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=2,
        show_progress=False,
        special_tokens=[*CONTROL_TOKENS, *MARK_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=MAX_PIECE_BYTES,
    )

    def texts() -> Iterator[str]:
        yield from documents
        for question, answer in chats:
            for _ in range(DICTIONARY_REPEATS):
                yield f"user\n{question}"
                yield f"assistant\n{answer}"

    tokenizer.train_from_iterator(texts(), trainer)
    return Tokenizer.from_str(compact_json(tokenizer))


def compact_json(tokenizer: Tokenizer) -> str:
    """tokenizer.json without blanks, merges as "left right", and MARK_TOKENS as ordinary text that is shown."""
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    merges = content["model"]["merges"]
    content["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def tokenizer_config() -> str:
    """tokenizer_config.json: what a chat program needs to know besides tokenizer.json."""
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "model_max_length": CONTEXT_TOKENS,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
    }
    return json.dumps(content, indent=2) + "\n"


def chat_text(question: str, answer: str) -> str:
    """One question with its answer, as the chat template renders them."""
    return f"{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n{answer}{TURN_END}\n"


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json beside the chat template, which is written by hand."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(compact_json(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text(tokenizer_config(), "utf-8")
