"""The model that `strata bench decode` measures: published shapes, random weights made in the card's memory.

Knows which of a preset's fields are made smaller and whether the card has room; knows no time.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from strata.bench.popular_routing import router_scales
from strata.engine.device_needs import plan_request
from strata.engine.memory_plan import GIB, MemoryPlan, budgets_of
from strata.engine.placement import plan_memory
from strata.errors import ModelError
from strata.experts.sources import expert_layers
from strata.experts.store_plan import StoreLayer
from strata.hardware import read_gpus, read_memory
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.synthetic import SyntheticForm, SyntheticWeights, TakeExperts
from strata.models.families import family_of
from strata.models.fast.packing import is_matrix
from strata.models.needs import Part, part_of
from strata.quant.cell_codes import CellKind
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


def make_model(
    config: dict[str, Any],
    form: SyntheticForm,
    device: torch.device,
    *,
    is_popular: bool = False,
    take_experts: TakeExperts | None = None,
) -> DeviceModel:
    """The model with all its weights on the device. is_popular: some experts are, else all are alike.

    take_experts: gets the experts' blobs layer by layer; the layers of the model have none then.
    """
    family = family_of(config)
    parsed = family.parse_config(config)
    scales = scales_of(config) if is_popular else None
    shapes = family.expected_tensors(parsed)
    weights = SyntheticWeights(shapes, STYLES[family.name], device, form, scales, take_experts)
    return describe(family.build(parsed, weights), device)


def expert_layers_of(config: dict[str, Any], form: SyntheticForm) -> tuple[tuple[StoreLayer, ...], int]:
    """The layers with experts, in order, with the layout of their blobs; and how many experts each has."""
    family = family_of(config)
    shapes = family.expected_tensors(family.parse_config(config))
    weights = SyntheticWeights(shapes, STYLES[family.name], torch.device("cpu"), form)
    prefixes = expert_layers(shapes)
    experts = shapes[f"{prefixes[0]}experts.down_proj"][0]
    return tuple(StoreLayer(prefix, weights.blob_layout(prefix)) for prefix in prefixes), experts


def scales_of(config: dict[str, Any]) -> torch.Tensor:
    """For `SyntheticWeights`: routers of this model that make experts popular."""
    text = text_part(config)
    return torch.from_numpy(router_scales(text["num_experts"], text["num_experts_per_tok"]))


@dataclass(frozen=True)
class AskedRoom:
    """What a card is to have room for beside the weights."""

    slots: int
    context: int
    cache_percent: float | None = None  # of the experts, while main memory holds all; None: all lie on the card
    chunk_rows: int | None = None  # of prompts that are read; None: none are
    kv_kind: CellKind = CellKind.BF16


def require_room(config: dict[str, Any], form: SyntheticForm, asked: AskedRoom) -> MemoryPlan:
    """The first card's plan. Raises ModelError with its refusal if model and conversations do not fit there."""
    family = family_of(config)
    parsed = family.parse_config(config)
    shapes = family.expected_tensors(parsed)
    weights = SyntheticWeights(shapes, STYLES[family.name], torch.device("cpu"), form)
    sizes = {
        name: weights.held_bytes(name) if is_matrix(shape) or part_of(name) is Part.ROUTED else 4 * math.prod(shape)
        for name, shape in shapes.items()
    }
    routed = sum(size for name, size in sizes.items() if part_of(name) is Part.ROUTED)
    cache = None if asked.cache_percent is None else min(asked.cache_percent / 100 * routed, routed - 1) / GIB
    settings = EngineSettings(
        slots=asked.slots,
        context=asked.context,
        cache_gib=cache,
        gpu_reads="windows" if asked.chunk_rows is None else "chunks",
        chunk_rows=asked.chunk_rows,
        kv_kind=asked.kv_kind,
    )
    card = read_gpus()[0]
    plan = plan_memory(
        plan_request(config, parsed, sizes, shapes, settings, budgets_of(card, read_memory(), None, None))
    )
    if plan.refusal is not None:
        raise ModelError(plan.refusal)
    if cache is None and plan.seats is not None:
        raise ModelError(
            f"the {routed / GIB:.1f} GiB of experts do not fit on {card.name} beside {asked.slots} conversations of "
            f"{asked.context:,} tokens: give fewer --layers, --slots or --context, or say --cache"
        )
    return plan
