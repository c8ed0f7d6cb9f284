"""A model on a device as the engine knows models: `LanguageModel` over a stage.

A prompt is read in chunks of up to thousands of rows that pass the stage layer by layer. Without memory for chunks it
is read as windows of 32 rows that are all committed: then a read row has the bits of a decoded one. Of logits only the
rows that somebody asked for cross to the host; hidden rows stay.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from strata.engine.chunk_reading import ChunkReading
from strata.engine.flights import in_flight
from strata.engine.read_pace import ReadPace, ReadSteps
from strata.engine.stage import MOST_ROWS, RowsPart, Stage, Variant
from strata.engine.stage_slots import StageSlot, StageSlots
from strata.models.base import LogitRows, Output, Reading, Segment, WindowResult
from strata.models.device.reading.chunks import ChunkMemory
from strata.models.reading import OutputSteps, Steps, run_through
from strata.models.row_model import check_segment, first_logit_row, require_finite
from strata.types import ReadAhead

RunStage = Callable[[Variant, int], None]  # launches a variant over a bucket: `Stage.run`, or its captured graphs


@dataclass(frozen=True)
class StagePending:
    """The window that a commit is for."""

    serial: int
    bucket: int


class StageModel:
    """See `LanguageModel`; states are `StageSlot`s."""

    draft_head = None  # a stage computes no draft layer
    experts_place = "vram"

    def __init__(
        self,
        stage: Stage,
        run: RunStage,
        config: Any,
        experts_per_row: int,
        chunks: ChunkMemory | None = None,
        steps: ReadSteps | None = None,
    ) -> None:
        """`run` launches what the stage has prepared; `config` is the family's; chunks: None to read as windows.

        steps: of a read in chunks.
        """
        self.stage = stage
        self.run = run
        self.config = config
        self.experts_per_row = experts_per_row
        self.vocabulary_size = stage.vocabulary
        self.max_position = min(stage.model.max_position, stage.sizes.context)
        self.slots = StageSlots(stage)
        self.chunks = chunks
        self._pace = ReadPace.on(stage.device, steps)
        self._reading: Callable[[], ChunkReading | None] = lambda: None  # begun last, as long as somebody has it
        self._serial = 0

    @property
    def reads_as_windows(self) -> bool:
        """See `LanguageModel`."""
        return self.chunks is None

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
        pools = self.stage.state.pools
        return {} if pools is None else pools.counted()

    @property
    def experts_counted(self) -> Mapping[str, int] | None:
        """See `LanguageModel`: of tiers what the device told last; None where every expert has a seat."""
        tiers = self.stage.model.tiers
        if tiers is None:
            return None
        counts = tiers.counts()
        of_windows = {"vram": counts.seats, "pcie": counts.in_place, "cpu": counts.on_cpu}
        if self.chunks is None:
            return of_windows
        return of_windows | {"prompt_vram": self.chunks.feed.at_hand, "prompt_pcie": self.chunks.feed.sent}

    @property
    def experts_read(self) -> Mapping[str, int]:
        """See `LanguageModel`."""
        tiers = self.stage.model.tiers
        return {} if tiers is None or tiers.reads is None else asdict(tiers.reads.counters())

    @property
    def arrivals(self) -> int:
        """See `LanguageModel`."""
        tiers, tables = self.stage.model.tiers, self.stage.model.tables
        experts = 0 if tiers is None or tiers.reads is None else tiers.reads.counters().experts
        return experts + (0 if tables is None else tables.counts().rows)

    @property
    def waiting_for(self) -> str | None:
        """See `LanguageModel`. Raises EngineError behind a fork, or once the tiers are closed."""
        told = [words for each in self.stage.model.asked if (words := each.waiting_for()) is not None]
        return "; ".join(told) or None

    @property
    def read_ahead(self) -> ReadAhead:
        """See `LanguageModel`."""
        reading = self._reading()
        return self._pace.between_chunks() if reading is None or reading.is_over else reading.ahead

    def new_state(self) -> StageSlot:
        """See `LanguageModel.new_state`. Raises EngineError if no slot is free."""
        return self.slots.take()

    def release(self, state: StageSlot) -> None:
        """See `LanguageModel.release`."""
        self.slots.give_back(state)

    def read(self, segments: Sequence[Segment], logit_rows: LogitRows = LogitRows.LAST) -> Output:
        """See `LanguageModel.read`. Returns when the device is done, so that a caller's clock tells what it took."""
        for segment in segments:
            check_segment(segment, self.max_position, self.vocabulary_size)
        if self.chunks is None:
            return _joined([run_through(self._window_steps(segment, logit_rows)) for segment in segments])
        return _joined([self._read_chunks(self.chunks, segment, logit_rows) for segment in segments])

    def begin_read(
        self, segment: Segment, logit_rows: LogitRows = LogitRows.LAST, marks: Sequence[int] = ()
    ) -> Reading:
        """See `LanguageModel.begin_read`. Raises ValueError for more rows than a chunk has."""
        check_segment(segment, self.max_position, self.vocabulary_size)
        if self.chunks is None:
            assert not marks, "a read in windows keeps no state inside its rows"
            return Steps(self._window_steps(segment, logit_rows))
        reading = ChunkReading(self.stage, self.chunks, self._pace, segment, logit_rows, marks)
        self._reading = weakref.ref(reading)
        return reading

    def window(self, segments: Sequence[Segment]) -> WindowResult:
        """See `LanguageModel.window`. A window's commits come before the next window or read."""
        for segment in segments:
            check_segment(segment, self.max_position, self.vocabulary_size)
        rows = sum(segment.token_ids.shape[0] for segment in segments)
        bucket = self.stage.bucket_for(rows)
        with in_flight(self.stage):
            self._set_rows(bucket, [_rows_part(segment, segment.token_ids) for segment in segments])
            self.run(Variant.FORWARD, bucket)
            logits = self._logits(bucket, 0, rows)
        require_finite(logits, "the window")
        return WindowResult(segments, Output(logits, torch.empty(rows, 0)), StagePending(self._serial, bucket))

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        """See `LanguageModel.commit`. Raises ValueError if other rows were computed since."""
        pending: StagePending = window.pending
        if pending.serial != self._serial:
            raise ValueError("the window's stored inputs are gone: a stage keeps those of its last rows")
        for segment, accepted in zip(window.segments, accepted_rows, strict=True):
            if not 0 <= accepted <= segment.token_ids.shape[0]:
                raise ValueError(f"accepted {accepted} of {segment.token_ids.shape[0]} rows")
        if any(accepted_rows):
            self._commit(pending.bucket, accepted_rows)
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
                    logits.append(self._logits(MOST_ROWS, max(first, start) - start, stop - start))
                self.stage.wait_here()
            segment.state.position += stop - start
        wanted = torch.cat(logits)
        require_finite(wanted, "the prompt")
        return Output(wanted, torch.empty(count, 0))

    def _read_chunks(self, chunks: ChunkMemory, segment: Segment, logit_rows: LogitRows) -> Output:
        """All rows of a segment, chunk after chunk."""
        outputs, pieces = [], segment.token_ids.split(chunks.capacity)
        for number, token_ids in enumerate(pieces, start=1):
            is_wanted = logit_rows is LogitRows.ALL or number == len(pieces)
            reading = self.begin_read(Segment(segment.state, token_ids), logit_rows if is_wanted else LogitRows.NONE)
            try:
                while not reading.advance():
                    pass
                outputs.append(reading.finish())
            finally:
                reading.cancel()
        self.stage.wait_here()
        return _joined(outputs)

    def _set_rows(self, bucket: int, parts: Sequence[RowsPart]) -> None:
        self._serial += 1
        self.stage.set_rows(bucket, parts)

    def _commit(self, bucket: int, accepted_rows: Sequence[int]) -> None:
        self.stage.set_accepted(accepted_rows)
        self.run(Variant.COMMIT, bucket)

    def _logits(self, bucket: int, start: int, stop: int) -> torch.Tensor:
        """Rows of the logits in memory of their own: the next window writes over the stage's."""
        return self.stage.logits(bucket)[start:stop].to("cpu", copy=True)


def _joined(outputs: Sequence[Output]) -> Output:
    return Output(torch.cat([each.logits for each in outputs]), torch.cat([each.hidden for each in outputs]))


def _rows_part(segment: Segment, token_ids: torch.Tensor) -> RowsPart:
    state: StageSlot = segment.state
    assert not state.is_broken, "nobody goes on from a window that failed"
    return RowsPart(state.index, state.position, token_ids.tolist())
