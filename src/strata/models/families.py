"""Which model families exist: from config.json's `model_type` to the family that reads, checks and loads it.

Knows the families' modules by name; knows nothing of what is inside a config or a model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from strata.errors import ConfigError
from strata.models import llama, qwen3_5_moe, qwen3_moe, qwen3_next, qwen4_exp
from strata.models.base import LanguageModel
from strata.models.config_fields import ConfigFields, json_word
from strata.models.weights import TensorWeights, Weights
from strata.weights.source import WeightSource


@dataclass(frozen=True)
class Family:
    """How one model family is read. `parse_config` gives the config that the other two take."""

    name: str
    model_types: tuple[str, ...]  # the values of config.json's model_type that mean this family
    parse_config: Callable[[Mapping[str, Any]], Any]
    expected_tensors: Callable[[Any], dict[str, tuple[int, ...]]]  # canonical name -> shape
    build: Callable[[Any, Weights], LanguageModel]

    def load(self, config: Any, source: WeightSource, dtype: torch.dtype) -> LanguageModel:
        """The model in plain torch, with all tensors read from `source` in `dtype`."""
        return self.build(config, TensorWeights(source, dtype))


def _family(name: str, module: Any) -> Family:
    return Family(name, module.MODEL_TYPES, module.parse_config, module.expected_tensors, module.build)


FAMILIES = (
    _family("qwen4_exp", qwen4_exp),
    _family("qwen3_5_moe", qwen3_5_moe),
    _family("qwen3_next", qwen3_next),
    _family("qwen3_moe", qwen3_moe),
    _family("llama", llama),
)


def supported_model_types() -> tuple[str, ...]:
    """Every model_type that can be loaded."""
    return tuple(model_type for family in FAMILIES for model_type in family.model_types)


def family_of(config_values: Mapping[str, Any]) -> Family:
    """The family of a parsed config.json. Raises ConfigError that lists what is supported."""
    model_type = ConfigFields(config_values).raw("model_type", None)
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    supported = ", ".join(supported_model_types())
    if model_type is None:
        raise ConfigError(f"config.json has no field model_type; supported: {supported}")
    raise ConfigError(f"config.json: model_type = {json_word(model_type)} is not supported; supported: {supported}")
