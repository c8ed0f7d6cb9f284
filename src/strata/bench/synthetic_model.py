"""The model that `strata bench decode` measures: published shapes, random weights made in the card's memory.

Knows which of a preset's fields are made smaller and whether the card has room; knows no time.
"""

import math
from typing import Any

import torch

from strata.engine.device_needs import plan_request
from strata.engine.memory_plan import MemoryPlan, budgets_of
from strata.engine.placement import plan_memory
from strata.errors import ModelError
from strata.hardware import read_gpus, read_memory
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.synthetic import SyntheticForm, SyntheticWeights
from strata.models.families import family_of
from strata.models.fast.packing import is_matrix
from strata.models.needs import Part, part_of
from strata.settings import EngineSettings
from strata.weights.presets import STYLES, preset_config, set_layers, text_part

FAMILY = "qwen4_exp"
TABLE_BASE = 200_000  # n-gram rows a head instead of 20 million: a window reads 16 rows of a table of any size


def synthetic_config(layers: int, is_tiny: bool) -> dict[str, Any]:
    """config.json of the published shape (or of a few megabytes) with so many layers, without its draft layer."""
    config = preset_config(FAMILY, "tiny" if is_tiny else "published")
    set_layers(config, layers)
    text = text_part(config)
    text["mtp_num_hidden_layers"] = 0
    text["ngram_vocab_size_base"] = min(text["ngram_vocab_size_base"], TABLE_BASE)
    return config


def make_model(config: dict[str, Any], form: SyntheticForm, device: torch.device) -> DeviceModel:
    """The model with all its weights on the device."""
    family = family_of(config)
    parsed = family.parse_config(config)
    weights = SyntheticWeights(family.expected_tensors(parsed), STYLES[family.name], device, form)
    return describe(family.build(parsed, weights), device)


def require_room(config: dict[str, Any], form: SyntheticForm, slots: int, context: int) -> MemoryPlan:
    """The first card's plan. Raises ModelError with its refusal if model and conversations do not fit there."""
    family = family_of(config)
    parsed = family.parse_config(config)
    shapes = family.expected_tensors(parsed)
    weights = SyntheticWeights(shapes, STYLES[family.name], torch.device("cpu"), form)
    sizes = {
        name: weights.held_bytes(name) if is_matrix(shape) or part_of(name) is Part.ROUTED else 4 * math.prod(shape)
        for name, shape in shapes.items()
    }
    settings = EngineSettings(slots=slots, context=context)
    budgets = budgets_of(read_gpus()[0], read_memory(), None, None)
    plan = plan_memory(plan_request(config, parsed, sizes, shapes, settings, budgets))
    if plan.refusal is not None:
        raise ModelError(plan.refusal)
    return plan
