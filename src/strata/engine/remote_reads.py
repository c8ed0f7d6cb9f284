"""Reads of prompts in chunks through a stage here and others in other processes: a chunk on each, one behind the other.

A step is a layer on every stage that has a chunk, at the same time, and waits for all of them, so that nothing is
queued in front of a window. One read's chunks are under way at a time; another slot's read gets its turn when they are
through. Knows no request.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strata.engine import stage_calls as calls
from strata.engine.chunk_reading import chunk_runs
from strata.engine.local_stage import on_device
from strata.engine.remote_chunks import give_streams, run_layer, tell_counts
from strata.engine.remote_copy import DistributedCopy
from strata.engine.slot_keeper import Point
from strata.engine.stage import Stage
from strata.engine.stage_line import StageLine
from strata.engine.stage_slots import SlotCopy, StageSlot
from strata.errors import EngineError
from strata.experts.host_memory import Pinning
from strata.models.base import LogitRows, Output, Reading, Segment
from strata.models.device.reading.chunks import GRID, Chunk, ChunkMemory, ChunkPlace
from strata.models.device.reading.mlps import COUNTED_ROWS
from strata.models.device.reading.rows import Run
from strata.models.device.reading.walk import KeptState
from strata.models.row_model import first_logit_row, require_finite
from strata.types import ReadAhead


@dataclass(frozen=True)
class ReadStages:
    """The stages that chunks pass, the first one here."""

    stage: Stage
    memory: ChunkMemory
    lines: Sequence[StageLine]  # to the other stages, in order
    ways: Sequence[DistributedCopy]  # of streams, to each of these from the one in front
    capacity: int  # rows of a chunk that every stage has room for


@dataclass(eq=False)
class PassingChunk:
    """What passes all of them, one behind the other."""

    place: ChunkPlace
    token_ids: torch.Tensor  # int64 [rows], in main memory
    kept: Mapping[int, SlotCopy]  # where the state in front of some of its rows goes
    first_logit_row: int  # as many as it has rows: none is wanted
    is_last: bool  # of its prompt
    is_through: bool = False  # the other process' stage where it is


class LedReads:
    """See `chunk_reads.ChunkReads`."""

    def __init__(self, stages: ReadStages) -> None:
        self.stages = stages
        self.holder: LedReading | None = None  # whose chunk is under way

    @property
    def read_ahead(self) -> ReadAhead:
        """See `LanguageModel`: nothing is queued, and how long a step takes is not known."""
        return ReadAhead()

    def make_room(self, chunks: int, pinning: Pinning | None) -> None:
        """No chunk is set aside: it goes through before another one comes."""

    def begin(self, segment: Segment, logit_rows: LogitRows, marks: Sequence[int]) -> "LedReading":
        """See `LanguageModel.begin_read`; of any number of chunks. Raises ValueError for a wrong mark or slot."""
        return LedReading(self, segment, logit_rows, marks)

    def read(self, segment: Segment, logit_rows: LogitRows) -> Output:
        """All rows of a checked segment."""
        reading: Reading = self.begin(segment, logit_rows, ())
        try:
            while not reading.advance():
                pass
            return reading.finish()
        finally:
            reading.cancel()


class LedReading:
    """See `Reading`."""

    def __init__(self, reads: LedReads, segment: Segment, logit_rows: LogitRows, marks: Sequence[int]) -> None:
        """marks: see `LanguageModel.begin_read`. Raises ValueError for a wrong one, or beside another read there."""
        state: StageSlot = segment.state
        self._first, self._count = state.position, segment.token_ids.shape[0]
        for mark in marks:
            if mark % GRID or not self._first < mark < self._first + self._count:
                stop = self._first + self._count
                raise ValueError(f"mark {mark} is no multiple of {GRID} inside rows {self._first} to {stop}")
        if state.is_broken:
            raise ValueError(f"a read of slot {state.index} is under way, or failed: nothing is read behind it")
        self._reads, self._state, self._token_ids, self._marks = reads, state, segment.token_ids, marks
        self._first_logit_row = first_logit_row(logit_rows, self._count)
        self._counts = logit_rows is LogitRows.LAST
        self._coming = deque(chunk_runs(self._first, self._count, reads.stages.capacity))
        self._on: list[PassingChunk | None] = [None] * (1 + len(reads.stages.lines))  # by stage
        self._own: Chunk | None = None  # on the stage of this process
        self._logits = [torch.empty(0, reads.stages.stage.vocabulary)]
        self._failure: Exception | None = None  # met while another read wanted its turn
        self._last_rows = 0  # of the last chunk, once that is behind the last stage
        self.checkpoints: tuple[SlotCopy, ...] = ()
        self.is_over = False
        state.begin_read()

    def advance(self) -> bool:
        """See `Reading.advance`: a layer of each stage, of another read as long as that has chunks under way."""
        if self._failure is not None:
            raise self._failure
        holder = self._reads.holder
        if holder is not None and holder is not self:
            holder.give_way()
            return False
        self._step(takes_more=True)
        return self._last_rows > 0

    def give_way(self) -> None:
        """A step towards the end of the chunks under way, for another read. Its own next step tells what goes wrong."""
        try:
            self._step(takes_more=False)
        except Exception as failure:
            self._failure = failure
            self._let_go()

    def finish(self) -> Output:
        """See `Reading.finish`. Raises EngineError for logits that are no numbers."""
        self.is_over = True
        wanted = torch.cat(self._logits)
        require_finite(wanted, "the prompt's last row")
        self._state.end_read(self._last_rows)
        return Output(wanted, torch.empty(self._count, 0))

    def cancel(self) -> None:
        """See `Reading.cancel`: gives the chunks up, wherever they are. Once more changes nothing."""
        self.is_over = True
        self._let_go()

    def _step(self, *, takes_more: bool) -> None:
        """A layer on every stage that has a chunk, side by side; takes_more: another chunk may come."""
        self._move_on(takes_more)
        stages, others = self._reads.stages, list(zip(self._on[1:], self._reads.stages.lines, strict=True))
        going = [(passing, line) for passing, line in others if passing is not None and not passing.is_through]
        for _, line in going:
            line.tell(calls.AskChunkStep())
        try:
            if self._own is not None and not self._own.is_through:
                with on_device(stages.stage.device):
                    run_layer(self._own, stages.stage)
        finally:
            failures = [self._take_answer(passing, line) for passing, line in going]
        for failure in failures:
            if failure is not None:
                raise failure
        self._move_on(takes_more)

    def _take_answer(self, passing: PassingChunk, line: StageLine) -> Exception | None:
        """What another stage's step gave, or why it failed."""
        try:
            answer = line.answer()
        except EngineError as failure:
            return failure
        values = torch.from_numpy(np.frombuffer(answer.content, np.float32).copy())
        self._logits.append(values.view(-1, self._reads.stages.stage.vocabulary))
        passing.is_through = answer.count == 1
        return None

    def _move_on(self, takes_more: bool) -> None:
        """Chunks that are through go to the next stage if that is free, behind the last one they are state."""
        for number in reversed(range(len(self._on))):
            passing = self._on[number]
            if passing is None or not (passing.is_through if number else self._own is None or self._own.is_through):
                continue
            if number + 1 == len(self._on):
                self._on[number] = None
                self._end_chunk(passing)
            elif self._on[number + 1] is None:
                self._on[number], self._on[number + 1] = None, passing
                self._hand_over(passing, number + 1)
        if self._on[0] is None and self._coming and takes_more:
            self._begin_next()
        self._reads.holder = self if any(self._on) else None

    def _begin_next(self) -> None:
        """The next chunk comes to the stage of this process."""
        stages, rows = self._reads.stages, self._coming.popleft()
        passing = self._chunk(rows)
        kept = {row: KeptState(*copy.parts_of(0)) for row, copy in passing.kept.items()}
        with on_device(stages.stage.device):
            self._own = stages.memory.begin(passing.place, passing.token_ids, kept)
        self._on[0] = passing

    def _chunk(self, rows: Run) -> PassingChunk:
        start, is_last = self._first + rows.start, not self._coming
        inside = [mark for mark in self._marks if rows.start < mark - self._first <= rows.stop]
        kept = {mark - start: self._state.room_for_copy(mark) for mark in inside}
        counts = self._counts and is_last and rows.count >= COUNTED_ROWS
        place = ChunkPlace(self._state.index, start, rows.count, tuple(kept), counts)
        first_logit_row = min(max(0, self._first_logit_row - rows.start), rows.count)
        return PassingChunk(place, self._token_ids[rows.start : rows.stop], kept, first_logit_row, is_last)

    def _hand_over(self, passing: PassingChunk, number: int) -> None:
        """To a stage of another process, from the one in front of it."""
        stages = self._reads.stages
        way, passing.is_through = stages.ways[number - 1], False
        stages.lines[number - 1].tell(_begins(passing, way.number))
        if number > 1:
            stages.lines[number - 2].tell(calls.ChunkGoesOn(way.number))
            return
        chunk, self._own = self._own, None
        assert chunk is not None, "what is through the first stage is there"
        with on_device(stages.stage.device):
            give_streams(chunk, way)
        if passing.place.counts:
            tell_counts(chunk, stages.memory)
        chunk.end()

    def _end_chunk(self, passing: PassingChunk) -> None:
        """Behind the last stage."""
        self._reads.stages.lines[-1].tell(calls.ChunkEnds())
        self.checkpoints += tuple(passing.kept.values())
        if passing.is_last:
            self._last_rows = passing.place.count
        else:
            self._state.end_chunk(passing.place.count)

    def _let_go(self) -> None:
        """No stage has a chunk of this read any more."""
        own, self._own = self._own, None
        if own is not None:
            own.end()
        for passing, line in zip(self._on[1:], self._reads.stages.lines, strict=True):
            if passing is not None and line.is_well:
                line.tell(calls.ChunkEnds())
        self._on = [None] * len(self._on)
        if self._reads.holder is self:
            self._reads.holder = None


def _begins(passing: PassingChunk, way: int) -> calls.ChunkBegins:
    """What another stage is told of a chunk that comes by a way."""
    place = passing.place
    points = {}
    for row, copy in passing.kept.items():
        assert isinstance(copy.key, Point), "marks of a read are points"
        points[str(row)] = copy.key.number
    token_ids = passing.token_ids.tolist()
    return calls.ChunkBegins(way, place.slot, place.position, token_ids, points, passing.first_logit_row, place.counts)
