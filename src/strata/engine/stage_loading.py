"""From a model's files to a stage that stands ready on a card: weights, state, captured windows, as the plan says.

Knows the order in which memory is taken and what is given up where it runs out: slots first, then context, as far as
nobody asked for them. What is planned is in `placement.py`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from strata.engine.checkpoint_budget import planned_checkpoints, point_budget
from strata.engine.chunk_loading import make_chunks, warm_up_chunks
from strata.engine.failures import is_out_of_memory
from strata.engine.graphs import WindowGraphs
from strata.engine.memory_plan import GIB, MemoryPlan
from strata.engine.placement import next_smaller, plan_again, recheck
from strata.engine.points import PointBudget
from strata.engine.read_pace import ReadSteps
from strata.engine.stage import MOST_ROWS, Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.engine.stage_profile import profiled_run
from strata.engine.stage_slots import StageSlots
from strata.engine.tier_loading import LoadedTiers, TierWishes, give_way, load_tiers, plan_store, ranks_of
from strata.errors import EngineError, ModelError
from strata.experts.host_memory import Pinning
from strata.experts.packing import PackingThreads
from strata.experts.store import ExpertStore
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.file_tables import file_tables_of
from strata.models.device.reading.support import chunk_problem
from strata.models.device.weights import DeviceWeights
from strata.models.families import Family
from strata.types import ProgressCallback
from strata.weights.source import WeightSource

Made = TypeVar("Made")
TOLD_SHARE = 0.01  # of the experts that have no seat though it was planned


@dataclass(frozen=True)
class Card:
    """What computes, and what can be asked of its memory."""

    device: torch.device
    free_bytes: Callable[[], int]
    release_unused: Callable[[], None]  # what the allocator keeps for later
    pinning: Callable[[], Pinning | None] = lambda: None  # of main memory that it reads; None: it reads all of it

    @classmethod
    def cuda(cls, index: int) -> "Card":
        """A card of this PC, from now on the one that torch means when it is told no other."""
        torch.cuda.set_device(index)
        device = torch.device("cuda", index)
        return cls(device, lambda: torch.cuda.mem_get_info(index)[0], torch.cuda.empty_cache, Pinning.cuda)


@dataclass(frozen=True)
class ModelFiles:
    """What a stage is loaded from: the tensors `names` of `source`, and how their family takes them."""

    family: Family
    config: Any  # the family's
    source: WeightSource
    names: Collection[str]


@dataclass(frozen=True)
class LoadedStage:
    """A model that is ready on a card, and the plan that came true."""

    model: StageModel
    plan: MemoryPlan
    notices: tuple[str, ...]
    points: PointBudget
    tiers: LoadedTiers | None = None  # None: all experts lie on the card


def load_stage(
    files: ModelFiles,
    card: Card,
    plan: MemoryPlan,
    on_progress: ProgressCallback | None = None,
    *,
    is_profiled: bool = False,
    wishes: TierWishes | None = None,
    steps: ReadSteps | None = None,
) -> LoadedStage:
    """Load the model's tensors and make the stage. Raises ModelError or EngineError, with what would work.

    Where the plan has seats, experts lie in tiers as `wishes` says; the stage's model holds their tables and threads.
    steps: of prompts that pass in chunks.
    is_profiled: run step by step and print a table of the steps' times when the process ends, instead of by graphs.
    An interrupt ends it between two tensors or two windows and is raised again.
    """
    weights = _load_weights(files, card, plan, wishes or TierWishes(), on_progress)
    card.release_unused()  # what loading used in between counts as free

    store = None if weights.tiers is None else weights.tiers.store
    pool = None if weights.tiers is None else weights.tiers.pool
    problem = chunk_problem(weights.description)

    def make(tried: MemoryPlan) -> StageModel:
        if weights.tiers is not None:
            give_way(weights.tiers, tried)
            card.release_unused()
        stage = Stage(weights.description, sizes_of(tried))
        run = profiled_run(stage, on_progress) if is_profiled else WindowGraphs(stage, on_progress).run
        chunks = None
        if tried.request.chunk_rows and problem is None:
            chunks = make_chunks(stage, min(tried.request.chunk_rows, stage.state.cells), store, pool)
            warm_up_chunks(chunks)
        return StageModel(stage, run, files.config, weights.experts_per_row, chunks, steps)

    fitting = _not_refused(recheck(weights.plan, card.free_bytes()))
    model, found = largest_that_fits(fitting, make, card.release_unused)
    points = make_point_room(model.slots, planned_checkpoints(found), card.pinning())
    notices = plan_notices(plan, found, files.config.max_position)
    if model.slots.room.notice is not None:
        notices += (model.slots.room.notice,)
    if store is not None and store.notice is not None:
        notices += (store.notice,)
    if problem is not None and found.request.chunk_rows:
        notices += (f"prompts are read as windows of {MOST_ROWS} rows, which is slow, because {problem}",)
    return LoadedStage(model, found, notices, points, weights.tiers)


def sizes_of(plan: MemoryPlan) -> StageSizes:
    """Of a stage of this plan."""
    request = plan.request
    return StageSizes(plan.slots, plan.context, kv_kind=request.kv_kind, kv_resident=request.kv_resident)


def make_point_room(slots: StageSlots, size: int, pinning: Pinning | None) -> PointBudget:
    """Take `size` bytes of main memory for the points of a stage's slots; returns how many they may keep."""
    count = slots.stage.sizes.slots
    budget = point_budget(size, slots.point_bytes, count)
    slots.make_room(budget.points + count if slots.point_bytes else 0, pinning)
    return budget if slots.room.free_pieces or not slots.point_bytes else PointBudget(count, count)


@dataclass(frozen=True)
class _Weights:
    """A model whose tensors are where the plan has them; there is no room for a conversation yet."""

    description: DeviceModel
    experts_per_row: int
    tiers: LoadedTiers | None
    plan: MemoryPlan


def _load_weights(
    files: ModelFiles, card: Card, plan: MemoryPlan, wishes: TierWishes, on_progress: ProgressCallback | None
) -> _Weights:
    """Raises EngineError where the card runs out of memory, ModelError where it is known before that it will."""
    if plan.seats is not None:  # they are taken at once: others may have filled the card meanwhile
        plan = _not_refused(plan_again(plan, card.free_bytes()))
    try:
        store = None
        if plan.seats is not None:
            planned = plan_store(files.source, files.names, plan, wishes)
            store = ExpertStore.create(planned, card.device, pinning=card.pinning(), on_progress=on_progress)
        with PackingThreads() as threads:
            weights = DeviceWeights(
                files.source,
                files.names,
                card.device,
                on_progress,
                threads=threads,
                store=store,
                reads_tables=plan.request.reads_tables,
            )
            built: Any = files.family.build(files.config, weights)
        tiers = None if store is None else load_tiers(store, ranks_of(built), card.device, wishes)
        tables = file_tables_of(built, card.device, waits_in_stream=wishes.waits_in_stream)
        description = describe(built, card.device, None if tiers is None else tiers.tiers, tables)
    except RuntimeError as failure:
        if not is_out_of_memory(failure):
            raise
        raise EngineError(
            f"the card ran out of memory while the weights were read: {card.free_bytes() / GIB:.1f} GiB are free, "
            "other programs may have the rest"
        ) from failure
    return _Weights(description, built.experts_per_row, tiers, plan)


def _not_refused(plan: MemoryPlan) -> MemoryPlan:
    """Raises ModelError with the plan's refusal."""
    if plan.refusal is not None:
        raise ModelError(plan.refusal)
    return plan


def largest_that_fits(
    plan: MemoryPlan, make: Callable[[MemoryPlan], Made], release_unused: Callable[[], None]
) -> tuple[Made, MemoryPlan]:
    """What `make` gives for the plan, or for the next smaller one as long as the card runs out of memory.

    Raises EngineError if there is nothing left to give up.
    """
    while True:
        try:
            return make(plan), plan
        except RuntimeError as failure:
            if not is_out_of_memory(failure):
                raise
            smaller = next_smaller(plan)
            if smaller is None:
                raise EngineError(
                    f"the card ran out of memory while room was made for {_conversations(plan)}: "
                    "ask for fewer slots or a smaller context"
                ) from failure
        release_unused()  # outside of the handler, whose traceback holds what was made
        plan = smaller


def plan_notices(wanted: MemoryPlan, found: MemoryPlan, longest_context: int) -> tuple[str, ...]:
    """What a user should know of a plan that came out smaller than the model or than it was meant to be."""
    notices = []
    if (found.slots, found.context) != (wanted.slots, wanted.context):
        notices.append(
            f"the card had room for less than planned: {_conversations(found)} instead of {_conversations(wanted)}"
        )
    if wanted.seat_share - found.seat_share >= TOLD_SHARE:
        notices.append(
            f"the card had room for {found.seat_share:.0%} of the experts and not for {wanted.seat_share:.0%}"
        )
    if found.request.asked_context is None and found.context < longest_context:
        why = "which is what fits on the card" if found.seats is None else "which leaves room for experts on the card"
        notices.append(f"the context is {found.context:,} tokens, {why}; the model was made for {longest_context:,}")
    return tuple(notices)


def _conversations(plan: MemoryPlan) -> str:
    count = "1 conversation" if plan.slots == 1 else f"{plan.slots} conversations"
    return f"{count} of {plan.context:,} tokens"
