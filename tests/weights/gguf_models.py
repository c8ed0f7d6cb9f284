"""Tiny random models of every family as directories and as GGUF files, made once. Knows no test."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from strata.cli.convert import convert_model
from strata.cli.synth import synth
from strata.models.base import LogitRows, Segment
from strata.models.families import family_of
from strata.weights.opening import ModelSource

FAMILIES = ("qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe", "llama")
# Rows of 64 so that every type of 32 and 64 fits; two values a key head, so that value heads change places.
FIELDS = {
    "qwen4_exp": ["hidden_size=64", "ngram_vocab_size_base=101", "linear_num_value_heads=6", "vocab_size=512"],
    "qwen3_5_moe": ["linear_num_value_heads=6", "vocab_size=512"],
    "qwen3_next": ["linear_num_value_heads=6", "vocab_size=512"],
    "qwen3_moe": ["vocab_size=512"],
    "llama": ["vocab_size=512"],
}
_FOLDER = TemporaryDirectory(prefix="strata-gguf-")


@cache
def directory(family: str) -> Path:
    """A published directory of random weights."""
    path = Path(_FOLDER.name, family)
    synth(family, path, fields=FIELDS[family])
    return path


@cache
def gguf(family: str, kind: str) -> Path:
    """The same model as a GGUF file of one type."""
    path = Path(_FOLDER.name, f"{family}-{kind}.gguf")
    convert_model(directory(family), path, kind)
    return path


def load(source: ModelSource) -> tuple[Any, Any]:
    """(checked config, model in float32)."""
    family = family_of(source.config)
    config = family.parse_config(source.config)
    return config, family.load(config, source, torch.float32)


def logits(source: ModelSource, rows: int = 100) -> torch.Tensor:
    """[rows, vocabulary] over fixed tokens."""
    _, model = load(source)
    token_ids = torch.arange(rows) * 37 % model.vocabulary_size
    return model.read([Segment(model.new_state(), token_ids)], LogitRows.ALL).logits
