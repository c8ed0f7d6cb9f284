"""Tiny model directories of random weights, of every family, without a tokenizer.

Knows their sizes and two scales of values: that of `strata synth`, and that from which transformers begins to train.
"""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from strata.cli.synth import synth

VOCABULARY_SIZE = 64  # so few that every logit can be kept
EXPERTS = 16
FRESH_DEVIATION = 0.02  # transformers' initializer_range: of every matrix, whatever its size
# Rows of 64 and 256 in the matrices, so that block types apply; llama.cpp has n-gram rows as wide as the model.
_SIZES = ("hidden_size=256", "num_hidden_layers=4", "head_dim=64", "tie_word_embeddings=false")
_EXPERTS = (f"num_experts={EXPERTS}", "num_experts_per_tok=4", "moe_intermediate_size=64")
_DELTA_NET = ("linear_key_head_dim=64", "linear_value_head_dim=64", "shared_expert_intermediate_size=64")
_SECTIONS = ("rope_parameters.mrope_section=[3,3,2]",)
_OF_FAMILY = {
    "qwen4_exp": (*_EXPERTS, *_DELTA_NET, *_SECTIONS, "ple_embed_dim=256", "hc_lowrank=64"),
    "qwen3_5_moe": (*_EXPERTS, *_DELTA_NET, *_SECTIONS),
    "qwen3_next": (*_EXPERTS, *_DELTA_NET),
    "qwen3_moe": _EXPERTS,
    "llama": (),
}


def write(directory: Path, family: str, *, is_fresh: bool, chooses_all: bool) -> None:
    """Write a model directory. `chooses_all`: every expert for every token, so that no router has a near-tie."""
    fields = [f"vocab_size={VOCABULARY_SIZE}", *_SIZES, *_OF_FAMILY[family]]
    if chooses_all and "num_experts_per_tok=4" in fields:
        fields.append(f"num_experts_per_tok={EXPERTS}")
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    synth(family, partial, fields=fields, seed=3)
    if is_fresh:
        for file in partial.glob("*.safetensors"):
            save_file({name: _fresh(name, values) for name, values in load_file(file).items()}, file, {"format": "pt"})
    partial.rename(directory)


def _fresh(name: str, values: torch.Tensor) -> torch.Tensor:
    """A tensor of synth's on the scale of transformers' initialization; norms are near 1 and decay rates below 16."""
    if name.endswith("dt_bias"):
        return torch.ones_like(values)
    if values.dim() < 2 or not values.is_floating_point():
        return values
    spread = values.float()
    return (spread * (FRESH_DEVIATION / spread.std())).to(values.dtype)
