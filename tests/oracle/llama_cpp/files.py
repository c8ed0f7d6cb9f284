"""The GGUF files that both sides read: the shipped model in several types, tiny random models, one published file.

Knows how they are made (strata convert, `random_models`) and which token ids are read; they lie in build/oracle.
"""

import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from strata import models_shipped
from strata.cli.convert import convert_model
from tests.oracle.llama_cpp import random_models, smollm
from tests.oracle.llama_cpp.greedy import read_record

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "oracle"
TEXT = Path(__file__).parent / "fixtures" / "heldout_ids.npy"  # of the shipped model's held-out manuals
PASSAGES = ((0, 256), (256, 416), (416, 512))  # none longer than the indexer's budget of 256 tokens
RANDOM_ROWS, RANDOM_PASSAGE = 48, 8  # short passages: all rows after one that got another expert are moved by it


class Weights(Enum):
    """What a file is made of."""

    SHIPPED = "shipped"
    FRESH = "fresh"  # as transformers begins to train it; every router chooses
    SHARP = "sharp"  # matrices of norm 1, so logits of order 1; beside 8 bits every expert is chosen
    SMOLLM = "smollm"  # SmolLM2-135M-Instruct as published


@dataclass(frozen=True)
class FileSpec:
    """One file: what it is made of and how it is stored. `kept`: likeliest tokens of a row that are remembered."""

    weights: Weights
    family: str
    storage: str
    kept: int

    @property
    def name(self) -> str:
        if self.weights in (Weights.SHIPPED, Weights.SMOLLM):
            return f"{self.weights.value}-{self.storage}"
        return f"{self.weights.value}-{self.family}-{self.storage}"

    @property
    def is_rounded(self) -> bool:
        """Whether activations meet the weights in 8 bits, on both sides."""
        return self.storage not in ("F32", "BF16")

    @property
    def passages(self) -> tuple[tuple[int, ...], ...]:
        """Token ids, each passage read from an empty state."""
        if self.weights is Weights.SMOLLM:  # llama.cpp's own greedy texts, its tokens given one by one
            return tuple((*text.prompt_ids, *text.token_ids[:-1]) for text in read_record())
        if self.weights is Weights.SHIPPED:
            ids = np.load(TEXT)
            return tuple(tuple(int(token) for token in ids[start:stop]) for start, stop in PASSAGES)
        drawn = np.random.default_rng(7).integers(0, random_models.VOCABULARY_SIZE, RANDOM_ROWS)
        return tuple(tuple(int(token) for token in passage) for passage in drawn.reshape(-1, RANDOM_PASSAGE))


MIXTURES = ("qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe")
SHIPPED = tuple(
    FileSpec(Weights.SHIPPED, "qwen4_exp", storage, 8) for storage in ("Q2_0", "Q4_0", "Q4_K", "Q8_0", "MXFP4", "BF16")
)
FRESH = tuple(
    FileSpec(Weights.FRESH, family, storage, random_models.VOCABULARY_SIZE)
    for family in MIXTURES
    for storage in ("BF16", "Q8_0", "Q4_K", "Q4_0", "Q2_0")
)
SHARP = tuple(
    FileSpec(Weights.SHARP, family, storage, random_models.VOCABULARY_SIZE)
    for storage in ("F32", "Q8_0")
    for family in (*MIXTURES, "llama")
)
SMOLLM = FileSpec(Weights.SMOLLM, "llama", "Q4_1", 8)
MADE = SHIPPED + FRESH + SHARP  # without any download
ALL = (*MADE, SMOLLM)


def make(spec: FileSpec, folder: Path = FOLDER) -> Path:
    """The file, written (or fetched, SmolLM2) if it is not there."""
    if spec.weights is Weights.SMOLLM:
        return smollm.fetch()
    out = folder / f"{spec.name}.gguf"
    if not out.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        convert_model(_directory(spec, folder), out, spec.storage)
    return out


def _directory(spec: FileSpec, folder: Path) -> Path:
    """The published directory that the file is made of."""
    if spec.weights is Weights.SHIPPED:
        return models_shipped.default_path()
    chooses_all = spec.weights is Weights.SHARP and spec.is_rounded
    directory = folder / f"{spec.weights.value}-{spec.family}{'-all' if chooses_all else ''}"
    if not directory.is_dir():
        random_models.write(directory, spec.family, is_fresh=spec.weights is Weights.FRESH, chooses_all=chooses_all)
    return directory


def weights_digest() -> str:
    """Of the shipped model's weights: what its kept rows belong to."""
    digest = hashlib.sha256()
    for file in sorted(models_shipped.default_path().glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
