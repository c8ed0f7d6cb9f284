"""A run of a prompt that passes one stage or several in chunks, step by step: see `models.base.Reading`.

A step is a layer of a chunk, or one of its legs: dense parts, or the experts of one tile; on several stages one on each
of them, of chunks that follow each other. The head is steps of its own. Knows what of a slot's state is kept on the
way; knows no request. The slot's state is half moved meanwhile: it counts as broken until the last row is part of it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from strata.engine.stage_reads import ChunkPass, PassRows, StageReads
from strata.engine.stage_slots import SlotCopy, StageSlot
from strata.models.base import LogitRows, Output, Segment
from strata.models.device.reading.chunks import GRID, ChunkPlace
from strata.models.device.reading.mlps import COUNTED_ROWS
from strata.models.device.reading.rows import Run
from strata.models.row_model import first_logit_row, require_finite
from strata.types import ReadAhead


@dataclass(frozen=True)
class _Passing:
    """A chunk on some stage."""

    rows: Run  # of the segment
    kept: Mapping[int, SlotCopy]  # the marks inside it, by their positions
    on_stage: ChunkPass


class ChunkReading:
    """See `Reading`. Windows, and reads of other slots, may come between two steps."""

    def __init__(
        self,
        line: Sequence[StageReads],
        segment: Segment,
        logit_rows: LogitRows,
        marks: Sequence[int],
        before_step: "Callable[[ChunkReading], None]",
    ) -> None:
        """line: the stages in order; marks: see `LanguageModel.begin_read`; before_step: hears of every one.

        Raises ValueError for rows that do not fit, for a wrong mark, or beside another read into the same slot.
        """
        state: StageSlot = segment.state
        self._line, self._state, self._token_ids = line, state, segment.token_ids
        self._first, count = state.position, segment.token_ids.shape[0]
        _check_marks(marks, self._first, count)
        runs = chunk_runs(self._first, count, min(each.memory.capacity for each in line))
        if state.is_broken:
            raise ValueError(f"a read of slot {state.index} is under way, or failed: nothing is read behind it")
        if logit_rows is LogitRows.ALL and len(runs) > 1:
            raise ValueError(f"logits of all of {count} rows: a chunk has 1 to {line[0].memory.capacity}")
        self._marks, self._count, self._before_step = marks, count, before_step
        self._first_logit_row = first_logit_row(logit_rows, count)
        self._counts = logit_rows is LogitRows.LAST and runs[-1].count >= COUNTED_ROWS
        self._coming = deque(runs)  # chunks that have not begun
        self._passing: list[_Passing | None] = [None] * len(line)  # by stage
        self._asked: list[tuple[StageReads, torch.Tensor]] = []
        self._last: _Passing | None = None  # the last chunk, behind the last step
        self.checkpoints: tuple[SlotCopy, ...] = ()  # see `Reading`: of chunks that are through
        self.is_over = False
        self._passing[0] = first = self._next_chunk()
        line[-1].checks.begin(state)
        state.begin_read()
        try:
            first.on_stage.begin_if_free()
        except BaseException:
            self.cancel()
            raise

    def advance(self) -> bool:
        """See `Reading.advance`. Returns while the devices compute this step, and perhaps steps before it.

        Where too much is queued it returns after a while with nothing done.
        """
        self._before_step(self)
        self._line[0].pace.until(self._advance_some)
        return self._last is not None

    def finish(self) -> Output:
        """See `Reading.finish`. What was launched may still run. Raises EngineError for logits that are no numbers."""
        assert self._last is not None, "a read is finished behind its last step"
        self.is_over = True
        wanted = torch.cat([torch.empty(0, self._line[-1].memory.model.vocabulary), *self._last.on_stage.logits])
        require_finite(wanted, "the prompt's last row")
        self._state.end_read(self._last.rows.count)
        self.checkpoints += tuple(self._last.kept.values())
        for reads, asked in self._asked:  # the last row's logits are there: nobody waits
            tiers = reads.stage.model.tiers
            assert tiers is not None, "experts are counted where they lie in tiers"
            tiers.prompt_was_read(asked.to("cpu", copy=True).numpy())
        return Output(wanted, torch.empty(self._count, 0))

    def cancel(self) -> None:
        """See `Reading.cancel`: waits for what was launched, unless the read is over. Once more changes nothing."""
        if self.is_over:
            return
        self.is_over = True
        failures = []
        for each in self._under_way:
            try:
                each.cancel()
            except Exception as failure:  # the other stages' memory is given back all the same
                failures.append(failure)
        if failures:
            raise failures[0]

    @property
    def ahead(self) -> ReadAhead:
        """See `LanguageModel.read_ahead`, of this read: of the stage that has most to do, and least to spare."""
        stages = [each.ahead for each in self._under_way if not each.waits]
        queued = max(reads.pace.queued for reads in self._line)
        steps = [each.next_step for each in stages if each.next_step is not None]
        next_step = max(steps, default=0.0) if len(steps) == len(stages) else None
        return ReadAhead(queued, next_step, min((each.spare for each in stages), default=0.0))

    @property
    def _under_way(self) -> list[ChunkPass]:
        return [each.on_stage for each in self._passing if each is not None]

    def _advance_some(self) -> bool:
        """A step of every stage that has room for one, the least busy first; whether there was any."""
        for each in self._under_way:
            each.check()
        self._line[-1].checks.require(self._state)
        self._move_on()  # one may have ended for another read that wanted its memory
        going = [each for each in self._under_way if not each.waits]
        steps = [each.advance() for each in sorted(going, key=lambda each: each.queued)]
        self._move_on()
        return any(steps) or not going

    def _move_on(self) -> None:
        """Where a stage is done with a chunk the next one follows."""
        for number in reversed(range(len(self._line))):
            passing = self._passing[number]
            if passing is not None and passing.on_stage.is_over:
                self._end(number, passing)
                passing = self._passing[number] = None
            if passing is None:
                self._passing[number] = self._next(number)

    def _end(self, number: int, passing: _Passing) -> None:
        """A chunk is behind a stage."""
        asked = passing.on_stage.asked
        if asked is not None:
            self._asked.append((self._line[number], asked))
        if number + 1 < len(self._line):
            return
        if passing.on_stage.is_finite is not None:
            stop = self._first + passing.rows.stop
            with self._line[-1].launching():
                self._line[-1].checks.ask(self._state, stop, passing.on_stage.is_finite)
        if passing.rows.stop == self._count:
            self._last = passing
        else:
            self._state.end_chunk(passing.rows.count)
            self.checkpoints += tuple(passing.kept.values())

    def _next(self, number: int) -> _Passing | None:
        """Who comes to a stage where nobody is, if anybody does."""
        if number == 0:
            if not self._coming:
                return None
            made = self._next_chunk()
            made.on_stage.begin_if_free()
            return made
        before = self._passing[number - 1]
        if before is None or not before.on_stage.waits:
            return None
        return self._passing_on(number, before.rows, before.kept, before.on_stage)

    def _next_chunk(self) -> _Passing:
        """Raises ValueError for rows that do not fit."""
        rows = self._coming.popleft()
        inside = [mark for mark in self._marks if rows.start < mark - self._first <= rows.stop]
        return self._passing_on(0, rows, {mark: self._state.room_for_copy(mark) for mark in inside}, None)

    def _passing_on(self, number: int, rows: Run, kept: Mapping[int, SlotCopy], source: ChunkPass | None) -> _Passing:
        start = self._first + rows.start
        by_row = {mark - start: each for mark, each in kept.items()}
        counts = self._counts and rows.stop == self._count
        place = ChunkPlace(self._state.index, start, rows.count, tuple(by_row), counts)
        first_logit_row = min(max(0, self._first_logit_row - rows.start), rows.count)
        token_ids = self._token_ids[rows.start : rows.stop]
        passed = PassRows(place, token_ids, by_row, first_logit_row)
        return _Passing(rows, kept, self._line[number].new_pass(passed, source))


def chunk_runs(position: int, count: int, capacity: int) -> list[Run]:
    """The chunks of `count` rows from `position` on: cut on the grid of positions, each as long as it can be."""
    runs, start = list[Run](), 0
    while start < count:
        stop = (position + start + capacity) // GRID * GRID - position
        runs.append(Run(start, min(count, stop)))
        start = runs[-1].stop
    return runs


def _check_marks(marks: Sequence[int], first: int, count: int) -> None:
    for mark in marks:
        if mark % GRID or not first < mark < first + count:
            raise ValueError(f"mark {mark} is no multiple of {GRID} inside rows {first} to {first + count}")
