"""A model directory's tokenizer as the metadata of a GGUF file: the other way of `gguf_tokenizer`.

Knows tokenizer.json and the keys `tokenizer.*`; what cannot be said with them is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.errors import ConfigError, TextError
from strata.text.gguf_tokenizer import CONTROL, NORMAL, NORMALIZER_KEY, UNUSED, USER_DEFINED
from strata.text.pre_tokenizers import PRE_TOKENIZERS, recognize_pre_tokenizer
from strata.text.tokenizer import load_tokenizer
from strata.weights.gguf_writer import Pair
from strata.weights.json_files import load_json_object

_PREFIX = "tokenizer.ggml."


def without_tokenizer() -> list[Pair]:
    """What a file says that holds no tokenizer."""
    return [Pair(f"{_PREFIX}model", "text", "none")]


def tokenizer_pairs(directory: Path, vocabulary_size: int) -> list[Pair]:
    """The metadata for the tokenizer and chat template of a directory, filled up to the model's vocabulary.

    Raises TextError for a tokenizer that is not byte-level BPE or that cuts words in a way the format has no name for.
    """
    tokenizer = load_tokenizer(directory)  # checks that it is one
    where = directory / "tokenizer.json"
    description = load_json_object(where, ConfigError)
    config = _optional_json(directory / "tokenizer_config.json")
    model = description.get("model") or {}
    cut = recognize_pre_tokenizer(description.get("pre_tokenizer"))
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback") or cut is None:
        known = ", ".join(found.names[0] for found in PRE_TOKENIZERS)
        raise TextError(f"{where} is not a byte-level tokenizer that cuts words as one of these does: {known}")
    normalizer = (description.get("normalizer") or {}).get("type", "")
    if normalizer not in ("", "NFC"):
        raise TextError(f"{where} has the normalizer {normalizer[:40]!r}; a GGUF file is written for NFC or none")
    texts, kinds = _tokens(where, model, description.get("added_tokens") or (), vocabulary_size)
    pairs = [
        Pair(f"{_PREFIX}model", "text", "gpt2"),
        Pair(f"{_PREFIX}pre", "text", cut.names[0]),
        Pair(f"{_PREFIX}tokens", "[text]", texts),
        Pair(f"{_PREFIX}token_type", "[i32]", kinds),
        Pair(f"{_PREFIX}merges", "[text]", [_merge(entry) for entry in model.get("merges", ())]),
        Pair(f"{_PREFIX}add_bos_token", "bool", _adds_start(description.get("post_processor"))),
        Pair(NORMALIZER_KEY, "text", normalizer),
    ]
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {key: tokenizer.token_id(_literal(config.get(f"{word}_token"))) for word, key in named.items()}
    others = sorted(end for end in tokenizer.eos_token_ids - {ids["eos"]} if 0 <= end < vocabulary_size)
    if ids["eos"] is None and others:
        ids["eos"] = others.pop(0)
    ids["eot"] = others[0] if others else None
    pairs += [Pair(f"{_PREFIX}{key}_token_id", "u32", found) for key, found in ids.items() if found is not None]
    template = _template(directory, config)
    return pairs + ([Pair("tokenizer.chat_template", "text", template)] if template else [])


def _tokens(where: Path, model: Mapping[str, Any], added: Any, size: int) -> tuple[list[str], list[int]]:
    """Text and type of every id; ids that no token has are unused."""
    found: dict[int, tuple[str, int]] = {token_id: (text, NORMAL) for text, token_id in model["vocab"].items()}
    found |= {entry["id"]: (entry["content"], CONTROL if entry.get("special") else USER_DEFINED) for entry in added}
    if max(found) >= size:
        raise TextError(
            f"{where} has the id {max(found):,}, the model's vocabulary {size:,}: they do not belong together"
        )
    filled = [found.get(token_id, (f"[PAD{token_id}]", UNUSED)) for token_id in range(size)]
    return [text for text, _ in filled], [kind for _, kind in filled]


def _merge(entry: Any) -> str:
    return entry if isinstance(entry, str) else " ".join(entry)


def _adds_start(processor: Any) -> bool:
    """Whether a post-processor puts a special token in front of a text."""
    if not isinstance(processor, Mapping):
        return False
    if processor.get("type") == "Sequence":
        return any(_adds_start(step) for step in processor.get("processors", ()))
    single: list[Any] = processor.get("single") or []
    return processor.get("type") == "TemplateProcessing" and any("SpecialToken" in step for step in single[:1])


def _template(directory: Path, config: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    field = config.get("chat_template")
    if isinstance(field, list):
        field = {entry.get("name"): entry.get("template") for entry in field if isinstance(entry, dict)}.get("default")
    return field if isinstance(field, str) else None


def _optional_json(path: Path) -> dict[str, Any]:
    return load_json_object(path, ConfigError) if path.is_file() else {}


def _literal(field: Any) -> str:
    text = field.get("content") if isinstance(field, dict) else field
    return text if isinstance(text, str) else ""
