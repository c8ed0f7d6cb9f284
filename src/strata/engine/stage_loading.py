"""From a model's files to one that stands ready on a card, or on several: weights, state, captured windows, as planned.

Knows the order in which memory is taken and what is given up where it runs out: seats of experts, then slots, then
context, as far as nobody asked for them. How a part is loaded is in `part_loading.py`, what is planned in
`placement.py` and `stage_plans.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strata.engine.chain import StageChain
from strata.engine.checkpoint_budget import planned_checkpoints, point_budget
from strata.engine.failures import is_out_of_memory
from strata.engine.memory_plan import MemoryPlan
from strata.engine.parked_budget import planned_parking
from strata.engine.part_loading import (
    Card,
    LoadedPart,
    MadePart,
    ModelFiles,
    load_parts,
    make_part,
    not_refused,
    sizes_of,
)
from strata.engine.placement import recheck
from strata.engine.points import PointBudget
from strata.engine.read_pace import ReadSteps
from strata.engine.reader_room import CHUNKS_ASIDE
from strata.engine.stage import MOST_ROWS
from strata.engine.stage_model import GroupStage, StageModel
from strata.engine.stage_plans import StagePlans, alike, smaller_plans, stage_words
from strata.engine.stage_slots import StageSlots
from strata.engine.tier_loading import LoadedTiers, TierWishes, give_way
from strata.errors import EngineError
from strata.experts.host_memory import Pinning
from strata.types import ProgressCallback

__all__ = [
    "Card", "LoadedStage", "ModelFiles", "largest_that_fits", "load_stage", "load_stages", "make_point_room",
    "plan_notices", "sizes_of",
]  # fmt: skip

Made = TypeVar("Made")
TOLD_SHARE = 0.01  # of the experts that have no seat though it was planned


@dataclass(frozen=True)
class LoadedStage:
    """A model that is ready, the plans that came true, and its parts."""

    model: StageModel
    plans: StagePlans
    notices: tuple[str, ...]
    points: PointBudget
    parts: Sequence[LoadedPart]

    @property
    def plan(self) -> MemoryPlan:
        """Of the first stage."""
        return self.plans.plans[0]

    @property
    def tiers(self) -> LoadedTiers | None:
        """Of the first stage; None: all of its experts lie on the card."""
        return self.parts[0].tiers


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
    """All layers on one card: see `load_stages`."""
    plans = StagePlans.single(plan, files.config.num_layers)
    return load_stages(files, [card], plans, on_progress, is_profiled=is_profiled, wishes=wishes, steps=steps)


def load_stages(
    files: ModelFiles,
    cards: Sequence[Card],
    plans: StagePlans,
    on_progress: ProgressCallback | None = None,
    *,
    is_profiled: bool = False,
    wishes: TierWishes | None = None,
    steps: ReadSteps | None = None,
) -> LoadedStage:
    """Load the model's tensors and make its stages. Raises ModelError or EngineError, with what would work.

    Where a plan has seats, experts lie in tiers as `wishes` says; the stage's model holds their tables and threads.
    steps: of prompts that pass in chunks.
    is_profiled: run step by step and print a table of the steps' times when the process ends, instead of by graphs.
    An interrupt ends it between two tensors or two windows and is raised again.
    """
    by_number = load_parts(files, plans, dict(enumerate(cards)), wishes or TierWishes(), on_progress)
    parts = [by_number[number] for number in range(len(cards))]
    _release(parts)  # what loading used in between counts as free

    def make(number: int, tried: MemoryPlan) -> MadePart:
        part = parts[number]
        if part.tiers is not None:
            give_way(part.tiers, tried)
            part.card.release_unused()
        return make_part(part, tried, on_progress, is_profiled=is_profiled)

    made, true = largest_that_fits(_rechecked(plans, parts), make, lambda: _release(parts))
    model = _model_of(made, files, parts[0].experts_per_row, steps)
    pinning = next((found for card in cards if (found := card.pinning()) is not None), None)
    points = make_point_room(model.slots, sum(map(planned_checkpoints, true.plans)), pinning)
    parked = sum(map(planned_parking, true.plans))
    notices = plan_notices(plans, true, files.config.max_position)
    notices += model.slots.parked.make_room(parked, true.context, pinning)
    notices += model.slots.notices
    if model.reads is not None and true.slots > 1 and sets_aside(true.plans[0]):
        model.reads.make_room(1, pinning)
    stores = [part.tiers.store.notice for part in parts if part.tiers is not None]
    notices += tuple(dict.fromkeys(notice for notice in stores if notice is not None))
    return LoadedStage(model, true, notices + _chunk_notices(parts, true), points, parts)


def sets_aside(plan: MemoryPlan) -> bool:
    """Whether it has room for a chunk of a prompt that waits for another one."""
    return any(part.name == CHUNKS_ASIDE for part in plan.parts)


def _rechecked(plans: StagePlans, parts: Sequence[LoadedPart]) -> StagePlans:
    """Now that the weights are there; seats may be fewer, and slots and context, on all stages."""
    checked = [not_refused(recheck(part.plan, part.card.free_bytes()), part.split, part.number) for part in parts]
    return alike(plans, checked)


def _model_of(made: Sequence[MadePart], files: ModelFiles, experts_per_row: int, steps: ReadSteps | None) -> StageModel:
    """Over the stage, or a chain of several; for each group of slots one beside the other."""
    if len(made) == 1:
        groups = [GroupStage(stage, run) for stage, run in zip(made[0].stages, made[0].runs, strict=True)]
    else:
        chains = [
            StageChain.of([part.stages[group] for part in made], [part.runs[group] for part in made], group)
            for group in range(len(made[0].stages))
        ]
        groups = [GroupStage(chain, chain.run) for chain in chains]
    chunks = [part.chunks for part in made if part.chunks is not None]
    if len(chunks) < len(made):
        chunks = []
    first, *others = groups
    return StageModel(
        first.stage,
        first.run,
        files.config,
        experts_per_row,
        chunks[0] if chunks else None,
        steps,
        others,
        chunks[1:],
    )


def _release(parts: Sequence[LoadedPart]) -> None:
    for part in parts:
        part.card.release_unused()


def _chunk_notices(parts: Sequence[LoadedPart], plans: StagePlans) -> tuple[str, ...]:
    if not plans.plans[0].request.chunk_rows:
        return ()
    problem = next((part.chunk_problem for part in parts if part.chunk_problem is not None), None)
    if problem is None:
        return ()
    return (f"prompts are read as windows of {MOST_ROWS} rows, which is slow, because {problem}",)


def make_point_room(slots: StageSlots, size: int, pinning: Pinning | None) -> PointBudget:
    """Take `size` bytes of main memory for the points of a stage's slots; returns how many they may keep."""
    count = slots.stage.sizes.slots
    budget = point_budget(size, slots.point_bytes, count)
    slots.make_room(budget.points + count if slots.point_bytes else 0, pinning)
    return budget if slots.free_points or not slots.point_bytes else PointBudget(count, count)


def largest_that_fits(
    plans: StagePlans, make: Callable[[int, MemoryPlan], Made], release_unused: Callable[[], None]
) -> tuple[list[Made], StagePlans]:
    """What `make` gives for every stage of the plans, or of the next smaller ones as long as a card runs out of memory.

    Stages of which nothing has changed stay. Raises EngineError if there is nothing left to give up.
    """
    made: list[Made] = []
    while len(made) < len(plans.plans):
        number = len(made)
        try:
            made.append(make(number, plans.plans[number]))
            continue
        except RuntimeError as failure:
            if not is_out_of_memory(failure):
                raise
            smaller = smaller_plans(plans, number)
            if smaller is None:
                where = "the card" if len(plans.plans) == 1 else f"the card of {stage_words(plans.split, number)}"
                raise EngineError(
                    f"{where} ran out of memory while room was made for {_conversations(plans)}: "
                    "ask for fewer slots or a smaller context"
                ) from failure
        if smaller.plans[:number] != plans.plans[:number]:
            made.clear()
        release_unused()  # outside of the handler, whose traceback holds what was made
        plans = smaller
    return made, plans


def plan_notices(wanted: StagePlans, found: StagePlans, longest_context: int) -> tuple[str, ...]:
    """What a user should know of plans that came out smaller than the model or than they were meant to be."""
    notices = []
    had = "the card had" if len(found.plans) == 1 else "the cards had"
    if (found.slots, found.context) != (wanted.slots, wanted.context):
        notices.append(f"{had} room for less than planned: {_conversations(found)} instead of {_conversations(wanted)}")
    if wanted.seat_share - found.seat_share >= TOLD_SHARE:
        notices.append(f"{had} room for {found.seat_share:.0%} of the experts and not for {wanted.seat_share:.0%}")
    if found.plans[0].request.asked_context is None and found.context < longest_context:
        why = "which leaves room for experts on the card" if found.has_tiers else "which is what fits on the card"
        notices.append(f"the context is {found.context:,} tokens, {why}; the model was made for {longest_context:,}")
    return tuple(notices)


def _conversations(plans: StagePlans) -> str:
    count = "1 conversation" if plans.slots == 1 else f"{plans.slots} conversations"
    return f"{count} of {plans.context:,} tokens"
