"""The GGUF files that both sides read: the shipped model in several types, and tiny random models of each family.

Knows how they are made (strata convert, strata synth) and which token ids are read; they lie in build/oracle.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata import models_shipped
from strata.cli.convert import convert_model
from strata.cli.synth import synth

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "oracle"
TEXT = Path(__file__).parent / "fixtures" / "heldout_ids.npy"  # of the shipped model's held-out manuals
PASSAGES = ((0, 256), (256, 416), (416, 512))  # none longer than the indexer's budget of 256 tokens
RANDOM_ROWS = 24
VOCABULARY_SIZE = 272  # of the random models: so few that every logit can be kept


@dataclass(frozen=True)
class FileSpec:
    """One file: what it is made of and how it is stored. `kept`: likeliest tokens of a row that are remembered."""

    name: str
    family: str  # "" means the shipped model
    storage: str
    kept: int

    @property
    def passages(self) -> tuple[tuple[int, ...], ...]:
        """Token ids, each read from an empty state."""
        if self.family:
            draw = np.random.default_rng(7)
            return (tuple(int(token) for token in draw.integers(0, VOCABULARY_SIZE, RANDOM_ROWS)),)
        ids = np.load(TEXT)
        return tuple(tuple(int(token) for token in ids[start:stop]) for start, stop in PASSAGES)


SHIPPED = tuple(
    FileSpec(f"shipped-{storage}", "", storage, 8) for storage in ("Q2_0", "Q4_0", "Q4_K", "Q8_0", "MXFP4", "BF16")
)
FAMILIES = ("qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe", "llama")
# In float32 both sides choose the same experts; where llama.cpp rounds activations (to 8 bits beside Q8_0) a random
# router's many near-ties would fall otherwise, so there every expert is chosen.
RANDOM = tuple(
    FileSpec(f"random-{family}-{storage}", family, storage, VOCABULARY_SIZE)
    for storage in ("F32", "Q8_0")
    for family in FAMILIES
)
ALL = SHIPPED + RANDOM


def make(spec: FileSpec, folder: Path = FOLDER) -> Path:
    """The file, written if it is not there."""
    out = folder / f"{spec.name}.gguf"
    if not out.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        convert_model(random_model(spec, folder) if spec.family else models_shipped.default_path(), out, spec.storage)
    return out


def random_model(spec: FileSpec, folder: Path) -> Path:
    """A tiny model directory of random weights, without a tokenizer."""
    directory = folder / spec.name
    if not directory.is_dir():
        fields = [f"vocab_size={VOCABULARY_SIZE}", *_WIDER, *_OF_FAMILY.get(spec.family, ())]
        if spec.storage != "F32" and spec.family != "llama":
            fields.append("num_experts_per_tok=16")
        synth(spec.family, directory, fields=fields, seed=3)
    return directory


# Rows of 32 and more in every matrix, so that block types apply; llama.cpp has n-gram rows as wide as the model.
_WIDER = ("hidden_size=128", "num_hidden_layers=4")
_OF_FAMILY = {"qwen4_exp": ("ple_embed_dim=128",)}


def weights_digest() -> str:
    """Of the shipped model's weights: what its kept rows belong to."""
    digest = hashlib.sha256()
    for file in sorted(models_shipped.default_path().glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
