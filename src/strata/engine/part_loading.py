"""From a model's files to its parts on their devices: weights as planned, then state, windows and chunks of each part.

Knows one process and which of a model's stages are here; a model on one card is one part. Which memory is planned is in
`stage_plans.py`, what is given up where it runs out in `stage_loading.py`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from strata.engine.chunk_loading import make_chunks, warm_up_chunks
from strata.engine.failures import is_out_of_memory
from strata.engine.graphs import WindowGraphs
from strata.engine.local_stage import RunStage, on_device
from strata.engine.memory_plan import GIB, MemoryPlan
from strata.engine.placement import plan_again
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_plans import StagePlans, stage_words
from strata.engine.stage_profile import profiled_run
from strata.engine.tier_loading import LoadedTiers, TierWishes, load_tiers, make_pool, plan_store, ranks_of
from strata.errors import EngineError, ModelError
from strata.experts.host_memory import Pinning
from strata.experts.packing import PackingThreads
from strata.experts.sources import expert_layers
from strata.experts.store import ExpertStore
from strata.models.device.describe import StagePlace, describe_parts
from strata.models.device.description import DeviceModel
from strata.models.device.file_tables import file_tables_of
from strata.models.device.layer_split import LayerSplit
from strata.models.device.reading.chunks import ChunkMemory
from strata.models.device.reading.support import chunk_problem
from strata.models.device.skeleton import SkeletonWeights
from strata.models.device.split_weights import PlacedWeights, SplitWeights, names_by_stage
from strata.models.device.weights import DeviceWeights
from strata.models.families import Family
from strata.types import ProgressCallback
from strata.weights.source import WeightSource

_CPU, _NOWHERE = torch.device("cpu"), torch.device("meta")
_CPU_FREE = 1 << 60  # of a stage on the CPU: its plan has a part of main memory, which nobody else is given


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

    @classmethod
    def cpu(cls) -> "Card":
        """The processor as a stage of its own, over tensors in main memory."""
        return cls(_CPU, lambda: _CPU_FREE, lambda: None)


@dataclass(frozen=True)
class ModelFiles:
    """What stages are loaded from: the tensors `names` of `source`, and how their family takes them."""

    family: Family
    config: Any  # the family's
    source: WeightSource
    names: Collection[str]


@dataclass(frozen=True)
class LoadedPart:
    """A stage's tensors where the plan has them; there is no room for a conversation yet."""

    number: int
    split: LayerSplit
    card: Card
    description: DeviceModel
    tiers: LoadedTiers | None  # None: all experts lie on the card
    plan: MemoryPlan
    experts_per_row: int  # of the whole model

    @property
    def words(self) -> str:
        """Which of several stages it is; empty if there is only one."""
        return stage_words(self.split, self.number) if self.split.stages > 1 else ""

    @property
    def chunk_problem(self) -> str | None:
        """Why its prompts cannot pass in chunks; None: they can."""
        return chunk_problem(self.description)


@dataclass(frozen=True)
class MadePart:
    """A stage that stands ready: a `Stage` for each group of slots, side by side, and who runs it."""

    stages: Sequence[Stage]
    runs: Sequence[RunStage]
    chunks: ChunkMemory | None  # None: prompts are read as windows


def load_parts(
    files: ModelFiles,
    plans: StagePlans,
    cards: Mapping[int, Card],
    wishes: TierWishes,
    on_progress: ProgressCallback | None = None,
) -> dict[int, LoadedPart]:
    """The stages that are here, by number; of all others nothing is read but headers and vectors.

    Raises EngineError where a card runs out of memory, ModelError where it is known before that it will.
    """
    taken = {number: _still_fitting(plans, number, card) for number, card in cards.items()}
    try:
        return _load(files, plans, taken, cards, wishes, on_progress)
    except RuntimeError as failure:
        if not is_out_of_memory(failure):
            raise
        free = ", ".join(f"{card.free_bytes() / GIB:.1f} GiB" for card in cards.values())
        raise EngineError(
            f"the card ran out of memory while the weights were read: {free} are free, other programs may have the rest"
        ) from failure


def _load(
    files: ModelFiles,
    plans: StagePlans,
    taken: Mapping[int, MemoryPlan],
    cards: Mapping[int, Card],
    wishes: TierWishes,
    on_progress: ProgressCallback | None,
) -> dict[int, LoadedPart]:
    named = names_by_stage(plans.split, files.names)
    stores = {
        number: _store(files, named, number, taken[number], cards[number], wishes, on_progress) for number in cards
    }
    progress = _Progress(on_progress, taken)
    with PackingThreads() as threads:
        weights: list[PlacedWeights] = [
            DeviceWeights(
                files.source,
                names,
                cards[number].device,
                progress.of(number),
                threads=threads,
                store=stores[number],
                reads_tables=taken[number].request.reads_tables,
            )
            if number in cards
            else SkeletonWeights(files.source, names, _NOWHERE)
            for number, names in enumerate(named)
        ]
        built: Any = files.family.build(files.config, SplitWeights(plans.split, weights))
    return _described(built, plans, taken, cards, stores, wishes)


def _described(
    built: Any,
    plans: StagePlans,
    taken: Mapping[int, MemoryPlan],
    cards: Mapping[int, Card],
    stores: Mapping[int, ExpertStore | None],
    wishes: TierWishes,
) -> dict[int, LoadedPart]:
    """The parts, with tables and threads of those whose experts lie in tiers; all have the same threads."""
    pool = make_pool(wishes) if any(store is not None for store in stores.values()) else None
    places: list[StagePlace | None] = [None] * plans.split.stages
    loaded: dict[int, LoadedTiers | None] = {}
    for number, card in cards.items():
        groups, store, run = taken[number].request.groups, stores[number], plans.split.runs[number]
        with on_device(card.device):
            tables = file_tables_of(built, card.device, run, waits_in_stream=wishes.waits_in_stream, groups=groups)
            tiers = None
            if store is not None and pool is not None:
                tiers = load_tiers(store, ranks_of(built), card.device, pool, groups, wishes)
            loaded[number] = tiers
            places[number] = StagePlace(card.device, None if tiers is None else tiers.tiers, tables)
    described = dict(zip(sorted(cards), describe_parts(built, plans.split, places), strict=True))
    return {
        number: LoadedPart(
            number, plans.split, card, described[number], loaded[number], taken[number], built.experts_per_row
        )
        for number, card in cards.items()
    }


def _still_fitting(plans: StagePlans, number: int, card: Card) -> MemoryPlan:
    """Seats are taken at once: others may have filled the card meanwhile. Raises ModelError with the plan's refusal."""
    plan = plans.plans[number]
    return plan if plan.seats is None else not_refused(plan_again(plan, card.free_bytes()), plans.split, number)


def not_refused(plan: MemoryPlan, split: LayerSplit, number: int) -> MemoryPlan:
    """The plan of a stage. Raises ModelError with its refusal."""
    if plan.refusal is not None:
        raise ModelError(plan.refusal if split.stages == 1 else f"{stage_words(split, number)}: {plan.refusal}")
    return plan


def _store(
    files: ModelFiles,
    named: Sequence[Collection[str]],
    number: int,
    plan: MemoryPlan,
    card: Card,
    wishes: TierWishes,
    on_progress: ProgressCallback | None,
) -> ExpertStore | None:
    """Memory of a stage's experts, with nothing in it yet; None where all lie on the card."""
    if plan.seats is None:
        return None
    before = sum(len(expert_layers(names)) for names in named[:number])
    if wishes.heat is not None:
        wishes = replace(wishes, heat=wishes.heat[before : before + len(expert_layers(named[number]))])
    planned = plan_store(files.source, named[number], plan, wishes)
    with on_device(card.device):
        return ExpertStore.create(planned, card.device, pinning=card.pinning(), on_progress=on_progress)


class _Progress:
    """Of all stages together, whose weights come in turns."""

    def __init__(self, on_progress: ProgressCallback | None, plans: Mapping[int, MemoryPlan]) -> None:
        self._on_progress = on_progress
        self._sizes = {number: sum(plan.request.weights.values()) for number, plan in plans.items()}
        self._done = dict.fromkeys(plans, 0)

    def of(self, number: int) -> ProgressCallback | None:
        """What one stage's weights tell."""
        if self._on_progress is None or len(self._sizes) == 1:
            return self._on_progress
        tell = self._on_progress

        def told(stage: str, done: int, total: int) -> None:
            self._done[number] = self._sizes[number] * done // total if total else 0
            tell(stage, sum(self._done.values()), sum(self._sizes.values()))

        return told


def make_part(
    part: LoadedPart, plan: MemoryPlan, on_progress: ProgressCallback | None = None, *, is_profiled: bool = False
) -> MadePart:
    """Take the memory of slots, windows and chunks, and capture the windows of every group.

    is_profiled: run step by step and print a table of the steps' times when the process ends, instead of by graphs.
    Raises torch's error if the card has no such memory.
    """
    tell = on_progress
    if on_progress is not None and part.words:

        def tell(stage: str, done: int, total: int) -> None:
            on_progress(f"{stage}, {part.words}", done, total)

    with on_device(part.card.device):
        stages: list[Stage] = []
        runs: list[RunStage] = []
        for group in range(groups_of(plan)):
            model = part.description.for_group(group) if group else part.description
            stages.append(Stage(model, sizes_of(plan), beside=stages[0] if group else None))
            runs.append(profiled_run(stages[-1], tell) if is_profiled else WindowGraphs(stages[-1], tell).run)
        return MadePart(stages, runs, _chunks(part, plan, stages[0]))


def _chunks(part: LoadedPart, plan: MemoryPlan, stage: Stage) -> ChunkMemory | None:
    if not plan.request.chunk_rows or part.chunk_problem is not None:
        return None
    store = None if part.tiers is None else part.tiers.store
    pool = None if part.tiers is None else part.tiers.pool
    chunks = make_chunks(stage, min(plan.request.chunk_rows, stage.state.cells), store, pool)
    warm_up_chunks(chunks)
    return chunks


def groups_of(plan: MemoryPlan) -> int:
    """Of the slots that came true."""
    return min(plan.request.groups, plan.slots)


def sizes_of(plan: MemoryPlan) -> StageSizes:
    """Of a stage of this plan."""
    request = plan.request
    return StageSizes(plan.slots, plan.context, kv_kind=request.kv_kind, kv_resident=request.kv_resident)
