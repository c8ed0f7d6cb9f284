"""Stages over GGUF files whose experts lie on the card, in main memory or in the file alone. Knows no test.

On CPU tensors, over the torch road with seats in other memory.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

from strata.engine.device_needs import plan_for
from strata.engine.memory_plan import Budget, Budgets, MemoryPlan, Place
from strata.engine.stage_loading import Card, LoadedStage, ModelFiles, load_stage
from strata.engine.tier_loading import TierWishes
from strata.models.families import family_of
from strata.settings import EngineSettings
from strata.weights.opening import open_model
from tests.engine.test_tier_loading import BUDGETS, CPU, GIB

# Without checkpoints and parked conversations, which would give way to experts and leave them more room than was meant.
SETTINGS = EngineSettings(slots=2, context=256, mmap=True, gpu_reads="windows", checkpoint_gib=0, parked_gib=0)


@cache
def whole_plan(path: Path) -> MemoryPlan:
    """With every expert on the card."""
    return plan_for(open_model(path), replace(SETTINGS, mmap=False), BUDGETS)


def filed_plan(path: Path, seats: float, in_ram: float, **changes: object) -> MemoryPlan:
    """Seats for a share of the experts, main memory for another share of them."""
    whole = whole_plan(path)
    routed = whole.request.routed_bytes
    limit = whole.used(Place.RAM) + int(in_ram * routed)
    budgets = Budgets("a card", BUDGETS.card, Budget(8 * GIB, 8 * GIB, limit))
    settings = replace(SETTINGS, cache_gib=seats * routed / GIB)
    return plan_for(open_model(path), replace(settings, **changes), budgets)  # type: ignore[arg-type]


def filed_stage(path: Path, plan: MemoryPlan, card: Card = CPU, wishes: TierWishes | None = None) -> LoadedStage:
    """The model of a file as planned."""
    source = open_model(path)
    family = family_of(source.config)
    files = ModelFiles(family, family.parse_config(source.config), source, list(source.names()))
    return load_stage(files, card, plan, wishes=wishes or TierWishes(threads=2))
