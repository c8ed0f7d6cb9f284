"""Tiny random models of every family in published directories, opened as they are or quantized. Knows no test.

Sizes that every kernel takes; of qwen4_exp the indexer's budget is exceeded after 27 rows.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.weights import DeviceWeights
from strata.models.families import Family, family_of
from strata.weights import presets
from strata.weights.opening import ModelSource, open_model
from strata.weights.synthetic import plan_tensors
from strata.weights.writer import write_json, write_weights

VOCABULARY = 96
FIELDS = {
    "qwen4_exp": ["indexer_budget=24", "hc_lowrank=32", "ple_layer_ids=[1,3]"],
    "qwen3_5_moe": ["linear_key_head_dim=32", "linear_value_head_dim=32"],
    "qwen3_next": ["mlp_only_layers=[1]"],
    "qwen3_moe": ["num_hidden_layers=2"],
    "llama": ["num_hidden_layers=2"],
}
MODELS = (  # a family, and what its matrices become
    ("qwen4_exp", "none"),
    ("qwen4_exp", "code8"),
    ("qwen4_exp", "code4"),
    ("qwen3_5_moe", "code8"),
    ("qwen3_5_moe", "none"),
    ("qwen3_next", "code4"),
    ("qwen3_moe", "code8"),
    ("llama", "code4"),
)
_FOLDER = TemporaryDirectory(prefix="strata-tiny-")


@dataclass(frozen=True)
class TinyModel:
    """A family, its checked config and an open source of weights."""

    family: Family
    config: Any
    source: ModelSource

    def build(self, device: torch.device) -> tuple[Any, DeviceModel]:
        """The model in torch over weights on the device, and described for it."""
        model = self.family.build(self.config, DeviceWeights(self.source, self.names, device))
        return model, describe(model, device)

    @property
    def names(self) -> list[str]:
        """Every tensor but the draft layer's."""
        return [name for name in self.source.names() if not name.startswith("mtp.")]


@cache
def directory(family: str) -> Path:
    """A published directory of random weights."""
    path = Path(_FOLDER.name, family)
    path.mkdir()
    config = presets.preset_config(family, "tiny")
    presets.set_fields(config, [f"vocab_size={VOCABULARY}", *FIELDS[family]])
    found = family_of(config)
    style = replace(presets.style_of(found.name, config, fp8_block=None), seed=3)
    write_json(path / "config.json", config)
    planned = plan_tensors(found.expected_tensors(found.parse_config(config)), style)
    write_weights(path, planned, 1 << 30, lambda *_: None)
    return path


@cache
def tiny_model(family: str, choice: str) -> TinyModel:
    """A tiny model whose matrices are `choice`: none (bf16), code8 or code4."""
    source = open_model(directory(family), choice)
    found = family_of(source.config)
    return TinyModel(found, found.parse_config(source.config), source)
