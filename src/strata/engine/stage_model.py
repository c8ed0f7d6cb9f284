"""A model on a device as the engine knows models: `LanguageModel` over a stage.

A prompt is read in chunks of up to thousands of rows that pass the stage layer by layer. Without memory for chunks it
is read as windows of 32 rows that are all committed: then a read row has the bits of a decoded one. Of logits only the
rows that somebody asked for cross to the host; hidden rows stay.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from strata.engine.chain_stage import WindowStage
from strata.engine.chunk_reads import ChunkReads, PromptReads
from strata.engine.flights import in_flight
from strata.engine.group_roads import GroupRoads
from strata.engine.local_stage import RunStage
from strata.engine.parked_slot import ParkedSlot
from strata.engine.read_pace import ReadSteps
from strata.engine.stage_programs import Variant
from strata.engine.stage_sizes import MOST_ROWS
from strata.engine.stage_slots import StageSlot, StageSlots
from strata.engine.window_words import RowsPart
from strata.experts.tiers import ExpertTiers
from strata.models.base import LogitRows, Output, Reading, Segment, WindowResult
from strata.models.device.reading.chunks import ChunkMemory
from strata.models.reading import OutputSteps, Steps, run_through
from strata.models.row_model import check_segment, first_logit_row, require_finite
from strata.types import ReadAhead


@dataclass(frozen=True)
class GroupStage:
    """What computes the windows of one group of slots: a stage with all layers, or a chain of them."""

    stage: WindowStage
    run: RunStage


@dataclass(frozen=True)
class StagePending:
    """The window that a commit is for."""

    serial: int
    bucket: int
    group: int


class StageModel:
    """See `LanguageModel`; states are `StageSlot`s."""

    draft_head = None  # a stage computes no draft layer
    experts_place = "vram"

    def __init__(
        self,
        stage: WindowStage,
        run: RunStage,
        config: Any,
        experts_per_row: int,
        chunks: ChunkMemory | None = None,
        steps: ReadSteps | None = None,
        other_groups: Sequence[GroupStage] = (),
        other_chunks: Sequence[ChunkMemory] = (),
    ) -> None:
        """`run` launches what the stage has prepared; `config` is the family's; chunks: None to read as windows.

        steps: of a read in chunks. other_groups: stages, or chains, beside this one, for windows that run at the same
        time. other_chunks: of the other stages of a chain, whose first one has `chunks`.
        """
        self.stage = stage
        self.run = run
        self.groups = (GroupStage(stage, run), *other_groups)  # the first one also runs what has no group
        self.roads = GroupRoads((each.device for each in stage.stages), len(self.groups))
        self.config = config
        self.experts_per_row = experts_per_row
        self.vocabulary_size = stage.vocabulary
        self.max_position = stage.max_position
        self.slots = StageSlots(stage)
        self.chunks = chunks
        self._memories = () if chunks is None else (chunks, *other_chunks)
        self.reads: PromptReads | None = None
        if self._memories:
            self.reads = ChunkReads(stage.stages, self._memories, steps)
        self._serial = 0

    @property
    def reads_as_windows(self) -> bool:
        """See `LanguageModel`."""
        return self.chunks is None

    @property
    def reads_runs(self) -> bool:
        """See `LanguageModel`."""
        return len(self._memories) > 1

    @property
    def keeps_marks(self) -> bool:
        """See `LanguageModel`."""
        return self.chunks is not None

    @property
    def chunk_rows(self) -> int | None:
        """See `LanguageModel`."""
        return None if self.chunks is None else self.chunks.capacity

    @property
    def most_window_rows(self) -> int | None:
        """See `LanguageModel`."""
        return self.stage.most_rows

    @property
    def pages_counted(self) -> Mapping[str, int]:
        """See `LanguageModel`: what the device told last."""
        found: Counter[str] = Counter()
        for stage in self.stage.stages:
            if stage.state.pools is not None:
                found.update(stage.state.pools.counted())
        return found

    @property
    def experts_counted(self) -> Mapping[str, int] | None:
        """See `LanguageModel`: of tiers what the device told last; None where every expert has a seat."""
        if not self._tiers:
            return None
        counts = [tiers.counts() for tiers in self._tiers]
        of_windows = {
            "vram": sum(each.seats for each in counts),
            "pcie": sum(each.in_place for each in counts),
            "cpu": sum(each.on_cpu for each in counts),
        }
        if not self._memories:
            return of_windows
        feeds = [memory.feed for memory in self._memories]
        at_hand, sent = sum(feed.at_hand for feed in feeds), sum(feed.sent for feed in feeds)
        return of_windows | {"prompt_vram": at_hand, "prompt_pcie": sent}

    @property
    def experts_read(self) -> Mapping[str, int]:
        """See `LanguageModel`."""
        found: Counter[str] = Counter()
        for tiers in self._tiers:
            if tiers.reads is not None:
                found.update(asdict(tiers.reads.counters()))
        return found

    @property
    def arrivals(self) -> int:
        """See `LanguageModel`."""
        reads = (tiers.reads.counters().experts for tiers in self._tiers if tiers.reads is not None)
        tables = (each.model.tables.counts().rows for each in self.stage.stages if each.model.tables is not None)
        return sum(reads) + sum(tables)

    @property
    def waiting_for(self) -> str | None:
        """See `LanguageModel`. Raises EngineError behind a fork, or once the tiers are closed."""
        asked = (each for group in self.groups for each in group.stage.asked)
        told = [words for each in asked if (words := each.waiting_for()) is not None]
        return "; ".join(told) or None

    @property
    def read_ahead(self) -> ReadAhead:
        """See `LanguageModel`."""
        return ReadAhead() if self.reads is None else self.reads.read_ahead

    def new_state(self) -> StageSlot:
        """See `LanguageModel.new_state`. Raises EngineError if no slot is free."""
        return self.slots.take()

    def release(self, state: StageSlot | ParkedSlot) -> None:
        """See `LanguageModel.release`."""
        self.slots.give_back(state)

    def read(self, segments: Sequence[Segment], logit_rows: LogitRows = LogitRows.LAST) -> Output:
        """See `LanguageModel.read`. Returns when the device is done, so that a caller's clock tells what it took."""
        for segment in segments:
            check_segment(segment, self.max_position, self.vocabulary_size)
        if self.reads is None:
            return _joined([run_through(self._window_steps(segment, logit_rows)) for segment in segments])
        return _joined([self.reads.read(segment, logit_rows) for segment in segments])

    def begin_read(
        self, segment: Segment, logit_rows: LogitRows = LogitRows.LAST, marks: Sequence[int] = ()
    ) -> Reading:
        """See `LanguageModel.begin_read`. Raises ValueError for more rows than a chunk has."""
        check_segment(segment, self.max_position, self.vocabulary_size)
        if self.reads is None:
            assert not marks, "a read in windows keeps no state inside its rows"
            return Steps(self._window_steps(segment, logit_rows))
        return self.reads.begin(segment, logit_rows, marks)

    def run_group(self, group: int, variant: Variant, bucket: int) -> None:
        """Launch a variant over a bucket of a group's stage."""
        run = self.groups[group].run if group else self.run
        run(variant, bucket)

    def window(self, segments: Sequence[Segment], group: int = 0) -> WindowResult:
        """See `LanguageModel.window`. A window's commits come before the next window or read.

        group: whose stage computes it; it goes to the current stream.
        """
        for segment in segments:
            check_segment(segment, self.max_position, self.vocabulary_size)
        rows = sum(segment.token_ids.shape[0] for segment in segments)
        bucket = self.stage.bucket_for(rows)
        stage = self.groups[group].stage
        with in_flight(stage):
            self._set_rows(bucket, [_rows_part(segment, segment.token_ids) for segment in segments], group)
            self.run_group(group, Variant.FORWARD, bucket)
            logits = stage.logits_on_host(bucket, 0, rows)
        require_finite(logits, "the window")
        pending = StagePending(self._serial, bucket, group)
        return WindowResult(segments, Output(logits, torch.empty(rows, 0)), pending)

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        """See `LanguageModel.commit`. Raises ValueError if other rows were computed since."""
        pending: StagePending = window.pending
        if pending.serial != self._serial:
            raise ValueError("the window's stored inputs are gone: a stage keeps those of its last rows")
        for segment, accepted in zip(window.segments, accepted_rows, strict=True):
            if not 0 <= accepted <= segment.token_ids.shape[0]:
                raise ValueError(f"accepted {accepted} of {segment.token_ids.shape[0]} rows")
        if any(accepted_rows):
            self._commit(pending.bucket, accepted_rows, pending.group)
        for segment, accepted in zip(window.segments, accepted_rows, strict=True):
            segment.state.position += accepted

    def _window_steps(self, segment: Segment, logit_rows: LogitRows) -> OutputSteps:
        """A window of as many rows as may be between two yields; all of them are committed. Waits for each."""
        count = segment.token_ids.shape[0]
        first = first_logit_row(logit_rows, count)
        logits = [torch.empty(0, self.vocabulary_size)]
        for start in range(0, count, self.stage.most_rows):
            if start:
                yield
            stop = min(count, start + self.stage.most_rows)
            with in_flight(self.stage, is_read=True):
                self._set_rows(MOST_ROWS, [_rows_part(segment, segment.token_ids[start:stop])])
                if stop <= first:
                    self.run(Variant.READ, MOST_ROWS)
                else:
                    self.run(Variant.FORWARD, MOST_ROWS)
                    self._commit(MOST_ROWS, [stop - start])
                    logits.append(self.stage.logits_on_host(MOST_ROWS, max(first, start) - start, stop - start))
                self.stage.wait_here()
            segment.state.position += stop - start
        wanted = torch.cat(logits)
        require_finite(wanted, "the prompt")
        return Output(wanted, torch.empty(count, 0))

    @property
    def _tiers(self) -> Sequence[ExpertTiers]:
        """Of the stages whose experts lie in tiers."""
        return [stage.model.tiers for stage in self.stage.stages if stage.model.tiers is not None]

    def _set_rows(self, bucket: int, parts: Sequence[RowsPart], group: int = 0) -> None:
        self._serial += 1
        self.groups[group].stage.set_rows(bucket, parts)

    def _commit(self, bucket: int, accepted_rows: Sequence[int], group: int = 0) -> None:
        self.groups[group].stage.set_accepted(accepted_rows)
        self.run_group(group, Variant.COMMIT, bucket)


def _joined(outputs: Sequence[Output]) -> Output:
    return Output(torch.cat([each.logits for each in outputs]), torch.cat([each.hidden for each in outputs]))


def _rows_part(segment: Segment, token_ids: torch.Tensor) -> RowsPart:
    state: StageSlot = segment.state
    assert not state.is_broken, "nobody goes on from a window that failed"
    return RowsPart(state.index, state.position, token_ids.tolist())
