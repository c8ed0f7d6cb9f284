"""Tiny models whose experts lie in tiers over the C++ service. No test.

On CPU tensors, over the torch road with seats in other memory, unless a card is named.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strata.experts.doorbell import ANSWER_LIMIT_S
from strata.experts.host_memory import Pinning
from strata.experts.packing import PackingThreads
from strata.experts.store import ExpertStore
from strata.experts.store_filling import fill_layer
from strata.experts.store_plan import StoreLayer, StorePlan
from strata.experts.tiers import ExpertTiers, WindowSize
from strata.experts.uploading import Staging
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel, SparseMlp
from strata.models.fast.packing import experts_of
from strata.native.pool import Pool
from tests.gpu.tiny_models import tiny_model

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Tiering:
    """How much of the experts has a seat, and of the misses of a layer how many are read in place."""

    seats: float
    in_place: float = 0.0
    is_exclusive: bool = False
    waits_in_stream: bool = False
    groups: int = 1  # of slots


@cache
def built(family: str, choice: str, device: torch.device = CPU) -> tuple[Any, DeviceModel]:
    """The tiny model with every expert on the device."""
    return tiny_model(family, choice).build(device)


def sparse_layers(model: DeviceModel) -> list[int]:
    """Which of its layers have experts."""
    return [index for index, layer in enumerate(model.layers) if isinstance(layer.mlp, SparseMlp)]


def seats_spread(tiering: Tiering, layers: int, experts: int) -> NDArray[np.bool_]:
    """Who has a seat [layers, experts]: some of every layer, spread over numbers and layers."""
    numbers = np.arange(experts)[None, :] * 7 + np.arange(layers)[:, None] * 3
    return numbers % experts < tiering.seats * experts


def store_of(family: str, choice: str, tiering: Tiering, device: torch.device = CPU) -> ExpertStore:
    """Its experts; main memory is pinned where a card reads it."""
    tiny = tiny_model(family, choice)
    sparse = [f"model.layers.{index}.mlp." for index in sparse_layers(built(family, choice, device)[1])]
    source = experts_of(tiny.source, sparse)
    experts = source.count(sparse[0])
    layers = tuple(StoreLayer(name, source.layout(name)) for name in sparse)
    plan = StorePlan(layers, seats_spread(tiering, len(layers), experts), tiering.is_exclusive)
    pinning = Pinning.cuda() if device.type == "cuda" else None
    store = ExpertStore.create(plan, device, threads=1, pinning=pinning)
    with PackingThreads(1) as threads:
        for layer in range(len(layers)):
            fill_layer(store, layer, source, threads, Staging(device))
    return store


@contextmanager
def tiered(
    family: str, choice: str, tiering: Tiering, pool: Pool, limit_s: float = ANSWER_LIMIT_S
) -> Iterator[tuple[Any, DeviceModel]]:
    """The same model with its experts in tiers; inside the block `DeviceModel.tiers` answers."""
    model, description = built(family, choice)
    first = description.layers[sparse_layers(description)[0]].mlp
    assert isinstance(first, SparseMlp)
    size = WindowSize(32, first.experts_per_token)
    store, is_waiting = store_of(family, choice, tiering), tiering.waits_in_stream
    tiers = ExpertTiers(store, pool, CPU, size, limit_s, waits_in_stream=is_waiting, groups=tiering.groups)
    tiers.set_share(share_table(tiers, tiering.in_place))
    try:
        yield model, describe(model, CPU, tiers)
    finally:
        tiers.close()


def share_table(tiers: ExpertTiers, share: float) -> torch.Tensor:
    """So much of n misses for each n, rounded down."""
    misses = torch.arange(tiers.tables[0].share.numel())
    return (misses * share).floor().int()
