"""Models whose experts lie in tiers on a device, for the checks of `tests.gpu.tiers`: tiny ones, and published shapes.

Knows where experts lie; knows no check.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from strata.bench.synthetic_model import expert_layers_of, make_model, synthetic_config
from strata.bench.tier_memory import TierMemory, model_in_tiers, model_on_device
from strata.engine.stage import Stage, StageSizes
from strata.experts.doorbell import ANSWER_LIMIT_S
from strata.experts.store import ExpertStore
from strata.experts.tiers import ExpertTiers, WindowSize
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel, SparseMlp
from strata.models.device.synthetic import SyntheticForm
from strata.native.pool import Pool
from tests.engine.tiered_stages import Tiering, built, seats_spread, share_table, store_of

PUBLISHED = "published"  # two layers of qwen4_exp with delta nets; on the CPU two tiny ones
PUBLISHED_LAYERS = 2
MODELS = ("qwen4_exp-code4", "qwen3_moe-code8", "qwen3_moe-none", PUBLISHED)
BUCKETS = (1, 4, 32)
SIZES = StageSizes(slots=4, context=256, most_drafts=3)


@dataclass(frozen=True)
class InTiers:
    """A model, where its experts lie, and who is asked for them."""

    model: DeviceModel
    store: ExpertStore
    tiers: ExpertTiers


def parts_of(name: str) -> tuple[str, str]:
    """The family, and what its matrices become."""
    family, _, choice = name.rpartition("-")
    return family, choice


def new_stage(model: DeviceModel) -> Stage:
    """A fresh stage of a few buckets."""
    return Stage(model, SIZES, BUCKETS)


@cache
def whole(name: str, device: torch.device) -> DeviceModel:
    """The model with every expert on the device."""
    if name != PUBLISHED:
        return built(*parts_of(name), device)[1]
    model, memory = _published(device)
    return model_on_device(model, memory.on_device())


@contextmanager
def in_tiers(
    name: str,
    tiering: Tiering,
    pool: Pool,
    device: torch.device,
    limit_s: float = ANSWER_LIMIT_S,
    *,
    waits_in_stream: bool = False,
) -> Iterator[InTiers]:
    """The same model in tiers. Whatever is in flight when the block ends is let go and waited for."""
    store, ranks = _store(name, tiering, device), _ranks(whole(name, device))
    size = WindowSize(BUCKETS[-1], ranks)
    tiers = ExpertTiers(store, pool, device, size, limit_s, waits_in_stream=waits_in_stream, groups=tiering.groups)
    tiers.set_share(share_table(tiers, tiering.in_place))
    try:
        yield InTiers(_model(name, tiers, device), store, tiers)
    finally:
        tiers.stop()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        tiers.close()


def _store(name: str, tiering: Tiering, device: torch.device) -> ExpertStore:
    if name != PUBLISHED:
        return store_of(*parts_of(name), tiering, device)
    _, memory = _published(device)
    return memory.store(seats_spread(tiering, len(memory.layers), memory.experts))


def _model(name: str, tiers: ExpertTiers, device: torch.device) -> DeviceModel:
    if name != PUBLISHED:
        return describe(built(*parts_of(name), device)[0], device, tiers)
    model, memory = _published(device)
    return model_in_tiers(model, tiers, memory)


@cache
def _published(device: torch.device) -> tuple[DeviceModel, TierMemory]:
    """Without experts, which lie in main memory."""
    config, form = synthetic_config(PUBLISHED_LAYERS, is_tiny=device.type == "cpu"), SyntheticForm()
    memory = TierMemory.take(*expert_layers_of(config, form), device, threads=4)
    return make_model(config, form, device, take_experts=memory.put), memory


def _ranks(model: DeviceModel) -> int:
    return max(layer.mlp.experts_per_token for layer in model.layers if isinstance(layer.mlp, SparseMlp))
