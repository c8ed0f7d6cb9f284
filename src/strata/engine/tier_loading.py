"""Experts in tiers as a memory plan says: who has a seat at the start, the memory for all, the threads for the rest.

Knows the order of it; what a seat is and who swaps is in `experts/`. Seats give way where a card has less room than was
planned, before anything else does.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strata.engine.memory_plan import MemoryPlan, Place
from strata.engine.plan_parts import EXPERTS, READ_EXPERTS
from strata.engine.stage import MOST_ROWS
from strata.experts.cache import place_hottest
from strata.experts.expert_files import ReadCache
from strata.experts.sources import expert_layers
from strata.experts.store import ExpertStore
from strata.experts.store_plan import StoreLayer, StorePlan
from strata.experts.tiers import ExpertPlaces, ExpertTiers, WindowSize
from strata.hardware import read_cpu
from strata.kernels.expert_plan import MOST_PLACES
from strata.models.fast.packing import experts_of
from strata.native import library
from strata.native.pool import Pool
from strata.weights.source import WeightSource


@dataclass(frozen=True)
class TierWishes:
    """What is asked of experts in tiers beside the memory plan."""

    heat: NDArray[np.floating] | None = None  # [layers, experts] how often a profile saw each; None: there is none
    threads: int | None = None  # that compute experts on the CPU; None: see `threads_beside_a_card`
    waits_in_stream: bool = False  # whether the device's stream waits for them, instead of a kernel


def plan_problem(plan: MemoryPlan) -> str | None:
    """Why a plan cannot be carried out here, in a sentence, what does not fit first; None if it can."""
    return plan.refusal or tiers_problem(plan)


def tiers_problem(plan: MemoryPlan) -> str | None:
    """Why a plan that has seats cannot be carried out here, in a sentence; None if it can."""
    if plan.seats is None:
        return None
    held = f"the card holds {plan.seat_share:.0%} of the experts, and"
    most = MOST_PLACES // MOST_ROWS
    if plan.request.ranks > most:
        return f"{held} a token takes {plan.request.ranks} of a layer: {most} are the most unless the card holds all"
    if not library.is_available():
        return f"{held} the others are computed by the C++ library, which was not built"
    return None


def plan_store(source: WeightSource, names: Collection[str], plan: MemoryPlan, wishes: TierWishes) -> StorePlan:
    """The hottest experts in as many bytes of seats as the plan has, the others in main memory, or in files as planned.

    Raises ValueError for heat of another shape.
    """
    assert plan.seats is not None
    found = experts_of(source, expert_layers(names))
    is_filed = plan.request.is_filed
    layers = tuple(
        StoreLayer(name, found.layout(name), found.published(name) if is_filed else None) for name in found.layers()
    )
    shape = len(layers), found.count(layers[0].name)
    heat = np.zeros(shape) if wishes.heat is None else wishes.heat
    if heat.shape != shape:
        raise ValueError(f"heat of {list(heat.shape)} layers and experts for a model of {list(shape)}")
    sizes = [layer.layout.total_bytes for layer in layers]
    seated = StorePlan(layers, place_hottest(heat, sizes, plan.seats), plan.request.is_exclusive, heat)
    return _with_files(seated, heat, plan) if is_filed else seated


def _with_files(seated: StorePlan, heat: NDArray[np.floating], plan: MemoryPlan) -> StorePlan:
    """The same where main memory does not hold all experts without a seat."""
    sizes = seated.blob_bytes
    in_ram = sum(part.size for part in plan.parts if part.name in (EXPERTS, READ_EXPERTS) and part.place is Place.RAM)
    read = sum(part.size for part in plan.parts if part.name == READ_EXPERTS)
    cache_bytes = max(read, int(sizes.max()))
    spare = sum(size * places for size, places in seated.spare_places().items())
    without_seat = np.where(seated.has_seat, -1.0, heat)
    has_place = place_hottest(without_seat, sizes.tolist(), max(0, in_ram - cache_bytes - spare)) & ~seated.has_seat
    return replace(seated, has_place=has_place, cache_bytes=cache_bytes)


@dataclass(frozen=True)
class LoadedTiers:
    """Memory, tables and threads of a stage's experts."""

    store: ExpertStore
    tiers: ExpertTiers
    pool: Pool  # also the tiers' threads, and those of other stages


def threads_beside_a_card(cores: int) -> int:
    """That compute experts: where there are more than a few cores, one is left to whoever launches windows.

    A precaution: the pool's threads spin while a window is in flight, each on a core of its own.
    """
    return cores - 1 if cores > 2 else cores


def make_pool(wishes: TierWishes) -> Pool:
    """The threads that compute experts of all stages."""
    return Pool(wishes.threads or threads_beside_a_card(read_cpu().usable_cores))


def load_tiers(
    store: ExpertStore, ranks: int, device: torch.device, pool: Pool, groups: int, wishes: TierWishes
) -> LoadedTiers:
    """Tables and mailboxes over a store that was filled. ranks: experts of a row; groups: of slots."""
    waits = wishes.waits_in_stream
    tiers = make_tiers(store, ranks, device, pool, waits_in_stream=waits, reads=store.reads, groups=groups)
    return LoadedTiers(store, tiers, pool)


def make_tiers(
    store: ExpertPlaces,
    ranks: int,
    device: torch.device,
    pool: Pool,
    *,
    waits_in_stream: bool = False,
    reads: ReadCache | None = None,
    groups: int = 1,
) -> ExpertTiers:
    """Tables for the largest windows of a stage. reads: gives experts that lie nowhere in `store`."""
    size = WindowSize(MOST_ROWS, ranks)
    return ExpertTiers(store, pool, device, size, waits_in_stream=waits_in_stream, reads=reads, groups=groups)


def ranks_of(built: Any) -> int:
    """Routed experts of one row in one layer of a built model."""
    return max(layer.routed_experts for layer in built.layers)


def give_way(loaded: LoadedTiers, plan: MemoryPlan) -> None:
    """Give up seats that the plan does not have any more; nothing is in flight. Raises ModelError as the store does."""
    assert plan.seats is not None
    store, tiers = loaded.store, loaded.tiers
    resident, in_ram = store.resident.copy(), store.in_ram.copy()
    if store.seat_bytes > plan.seats:
        store.give_up_seats(store.seat_bytes - plan.seats)
    for layer, expert in np.argwhere(store.in_ram != in_ram).tolist():
        tiers.set_in_ram(layer, expert, int(store.in_ram[layer, expert]))
    for layer, expert in np.argwhere(store.resident != resident).tolist():
        tiers.set_resident(layer, expert, int(store.resident[layer, expert]))
