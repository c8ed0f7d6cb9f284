"""A model's stages in several processes, from the plans they have met on to a chain that stands ready.

Knows parts and chains; each process loads its own stage, see `part_loading.py`.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from strata.engine import stage_calls as calls
from strata.engine.checkpoint_budget import planned_checkpoints
from strata.engine.failures import is_out_of_memory
from strata.engine.local_stage import LocalStage, on_device
from strata.engine.parked_budget import planned_parking
from strata.engine.part_loading import Card, LoadedPart, ModelFiles, load_parts, make_part
from strata.engine.remote_chain import chunk_ways, place_of, remote_chains
from strata.engine.remote_chunks import ServedChunks
from strata.engine.remote_meeting import Meeting
from strata.engine.remote_reads import LedReads, ReadStages
from strata.engine.stage_line import StageLine
from strata.engine.stage_loading import LoadedStage, make_point_room, plan_notices
from strata.engine.stage_model import GroupStage, StageModel
from strata.engine.stage_process import ServedPart
from strata.engine.stage_sizes import MOST_ROWS
from strata.engine.tier_following import end_behind, follow_windows
from strata.engine.tier_loading import TierWishes, plan_problem
from strata.errors import EngineError, ModelError, StrataError
from strata.models.device.reading.chunks import ChunkMemory
from strata.settings import EngineSettings
from strata.types import ProgressCallback

LOAD_SECONDS = 3600.0  # that another stage may take: weights come from a disk, perhaps a slow one


class LedModel(StageModel):
    """A model of which this process has the first stage; it knows when another one is gone."""

    lines: Sequence[StageLine] = ()

    def lead(self, lines: Sequence[StageLine], stages: ReadStages | None) -> None:
        """The lines to the others, and how prompts pass them in chunks, if they do."""
        self.lines = tuple(lines)
        if stages is not None:
            self.reads = LedReads(stages)

    @property
    def reads_runs(self) -> bool:
        """See `LanguageModel`: chunks follow each other on the stages."""
        return self.reads is not None

    @property
    def arrivals(self) -> int:
        """See `LanguageModel`. Raises DeviceLostError if the process of a stage is gone."""
        for line in self.lines:
            line.require_well()
        return super().arrivals


@dataclass(frozen=True)
class _OwnStages:
    """The stage of this process."""

    groups: Sequence[LocalStage]  # one a group of slots
    chunks: ChunkMemory | None  # None: prompts are read as windows


def load_leading(
    files: ModelFiles,
    card: Card,
    meeting: Meeting,
    lines: Sequence[StageLine],
    wishes: TierWishes,
    on_progress: ProgressCallback | None = None,
) -> LoadedStage:
    """For rank 0: its stage, and the model over all of them once the others have theirs.

    The others end when the model is gone, or this process. Raises EngineError where memory runs out, and whatever ends
    another stage.
    """
    with _ending(lines):
        part, own = _own_stages(files, card, meeting, wishes, on_progress)
        loaded = [_awaited(line) for line in lines]
        others = [(line, each.facts) for line, each in zip(lines, loaded, strict=True)]
        first, *chains = remote_chains(own.groups, others, meeting.copies)
        groups = [GroupStage(chain, chain.run) for chain in chains]
        stages = _read_stages(own, lines, loaded, meeting)
        chunks = None if stages is None else stages.memory
        model = LedModel(first, first.run, files.config, part.experts_per_row, chunks, other_groups=groups)
        model.lead(lines, stages)
        plans, pinning = meeting.plans, card.pinning()
        points = make_point_room(model.slots, sum(map(planned_checkpoints, plans.plans)), pinning)
        parked = sum(map(planned_parking, plans.plans))
        notices = plan_notices(plans, plans, files.config.max_position)
        notices += model.slots.parked.make_room(parked, plans.context, pinning) + model.slots.notices
    notices += tuple(notice for each in loaded for notice in each.notices)
    if stages is None:
        notices += (f"prompts are read as windows of {MOST_ROWS} rows, which is slow",)
    weakref.finalize(model, _end, model.lines)
    return LoadedStage(model, plans, notices, points, [part])


def load_following(
    files: ModelFiles, card: Card, meeting: Meeting, wishes: TierWishes, settings: EngineSettings
) -> tuple[ServedPart, calls.PartLoaded]:
    """For another rank: its stage, and what rank 0 is told of it. Raises EngineError where memory runs out."""
    part, own = _own_stages(files, card, meeting, wishes, None)
    first = own.groups[0]
    (keeper,) = first.slot_keepers()
    stage = first.stage
    if part.tiers is not None:
        with on_device(stage.device):
            swapper = follow_windows(part.tiers, stage, settings)
        end_behind(stage, part.tiers, swapper, lambda heat: None)  # of some layers: no profile of the model
    ways, chunks, rows = dict(enumerate(meeting.copies)), None, 0
    if own.chunks is not None:
        chunks, rows = ServedChunks(stage, own.chunks, keeper, ways), own.chunks.capacity
    kept = calls.KeptBytes.of(keeper)
    facts = calls.PartFacts(first.most_rows, stage.vocabulary, bool(first.asked), rows, kept)
    notice = None if part.tiers is None else part.tiers.store.notice
    served = ServedPart(own.groups, keeper, ways, card.pinning(), chunks)
    return served, calls.PartLoaded(facts, () if notice is None else (notice,))


def _own_stages(
    files: ModelFiles, card: Card, meeting: Meeting, wishes: TierWishes, on_progress: ProgressCallback | None
) -> tuple[LoadedPart, _OwnStages]:
    """This process' part, and what stands ready of it."""
    rank, count = meeting.ranks.rank, meeting.ranks.count
    if problem := plan_problem(meeting.plans.plans[rank]):
        raise ModelError(f"{place_of(rank, count)}: {problem}")
    part = load_parts(files, meeting.plans, {rank: card}, wishes, on_progress)[rank]
    card.release_unused()
    try:
        made = make_part(part, part.plan, on_progress)
    except RuntimeError as failure:
        if not is_out_of_memory(failure):
            raise
        raise EngineError(
            f"{place_of(rank, count)} ran out of memory while room was made for {part.plan.slots} slots of "
            f"{part.plan.context:,} tokens: ask for fewer slots or a smaller context"
        ) from failure
    pairs = zip(made.stages, made.runs, strict=True)
    return part, _OwnStages([LocalStage(stage, run, place_of(rank, count)) for stage, run in pairs], made.chunks)


def _read_stages(
    own: _OwnStages, lines: Sequence[StageLine], loaded: Sequence[calls.PartLoaded], meeting: Meeting
) -> ReadStages | None:
    """What chunks pass; None where a stage has no memory for them."""
    rows = [0 if own.chunks is None else own.chunks.capacity, *(each.facts.chunk_rows for each in loaded)]
    if own.chunks is None or not all(rows):
        return None
    ways = chunk_ways(meeting.copies, meeting.ranks.count)
    return ReadStages(own.groups[0].stage, own.chunks, lines, ways, min(rows))


def _awaited(line: StageLine) -> calls.PartLoaded:
    loaded = line.next_message(LOAD_SECONDS)
    if not isinstance(loaded, calls.PartLoaded):
        raise EngineError(f"the stage of rank {line.rank} is not loaded but says {type(loaded).__name__}")
    return loaded


@contextmanager
def _ending(lines: Sequence[StageLine]) -> Iterator[None]:
    """What fails here ends the other processes, which are told why."""
    try:
        yield
    except StrataError as failure:
        for line in lines:
            line.end(str(failure))
        raise


def _end(lines: Sequence[StageLine]) -> None:
    for line in lines:
        line.end()
