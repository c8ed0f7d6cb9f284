"""From a model's files to a stage that stands ready on a card: weights, state, captured windows, as the plan says.

Knows the order in which memory is taken and what is given up where it runs out: slots first, then context, as far as
nobody asked for them. What is planned is in `placement.py`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from strata.engine.failures import is_out_of_memory
from strata.engine.graphs import WindowGraphs
from strata.engine.memory_plan import GIB, MemoryPlan
from strata.engine.placement import next_smaller, recheck
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.engine.stage_profile import profiled_run
from strata.errors import EngineError, ModelError
from strata.experts.packing import PackingThreads
from strata.models.device.describe import describe
from strata.models.device.weights import DeviceWeights
from strata.models.families import Family
from strata.types import ProgressCallback
from strata.weights.source import WeightSource

Made = TypeVar("Made")


@dataclass(frozen=True)
class Card:
    """What computes, and what can be asked of its memory."""

    device: torch.device
    free_bytes: Callable[[], int]
    release_unused: Callable[[], None]  # what the allocator keeps for later

    @classmethod
    def cuda(cls, index: int) -> "Card":
        """A card of this PC, from now on the one that torch means when it is told no other."""
        torch.cuda.set_device(index)
        return cls(torch.device("cuda", index), lambda: torch.cuda.mem_get_info(index)[0], torch.cuda.empty_cache)


@dataclass(frozen=True)
class LoadedStage:
    """A model that is ready on a card, and the plan that came true."""

    model: StageModel
    plan: MemoryPlan
    notices: tuple[str, ...]


def load_stage(
    family: Family,
    config: Any,
    source: WeightSource,
    names: Collection[str],
    card: Card,
    plan: MemoryPlan,
    on_progress: ProgressCallback | None = None,
    *,
    is_profiled: bool = False,
) -> LoadedStage:
    """Load the tensors `names` and make the stage. Raises ModelError or EngineError, with what would work.

    is_profiled: run step by step and print a table of the steps' times when the process ends, instead of by graphs.
    An interrupt ends it between two tensors or two windows and is raised again.
    """
    try:
        with PackingThreads() as threads:
            built: Any = family.build(config, DeviceWeights(source, names, card.device, on_progress, threads=threads))
        description = describe(built, card.device)
    except RuntimeError as failure:
        if not is_out_of_memory(failure):
            raise
        raise EngineError(
            f"the card ran out of memory while the weights were read: {card.free_bytes() / GIB:.1f} GiB are free, "
            "other programs may have the rest"
        ) from failure
    card.release_unused()  # what loading used in between counts as free
    checked = recheck(plan, card.free_bytes())
    if checked.refusal is not None:
        raise ModelError(checked.refusal)

    def make(tried: MemoryPlan) -> StageModel:
        stage = Stage(description, StageSizes(tried.slots, tried.context))
        run = profiled_run(stage, on_progress) if is_profiled else WindowGraphs(stage, on_progress).run
        return StageModel(stage, run, config, built.experts_per_row)

    model, found = largest_that_fits(checked, make, card.release_unused)
    return LoadedStage(model, found, plan_notices(plan, found, config.max_position))


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
    if found.request.asked_context is None and found.context < longest_context:
        notices.append(
            f"the context is {found.context:,} tokens, which is what fits on the card; the model was made for "
            f"{longest_context:,}"
        )
    return tuple(notices)


def _conversations(plan: MemoryPlan) -> str:
    count = "1 conversation" if plan.slots == 1 else f"{plan.slots} conversations"
    return f"{count} of {plan.context:,} tokens"
