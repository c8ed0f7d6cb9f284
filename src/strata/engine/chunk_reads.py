"""Reads of prompts that pass a model's stages in chunks. Several may be under way, each in a slot of its own.

One of them goes on at a time: what it needs the others leave to it, see `stage_reads.py`. Knows no request.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from strata.engine.chunk_reading import ChunkReading
from strata.engine.read_pace import ReadSteps
from strata.engine.stage import Stage
from strata.engine.stage_reads import StageReads
from strata.experts.host_memory import Pinning
from strata.models.base import LogitRows, Output, Reading, Segment
from strata.models.device.reading.chunks import ChunkMemory
from strata.types import ReadAhead


class PromptReads(Protocol):
    """How prompts pass a model in chunks: `ChunkReads` here, `remote_reads.LedReads` with stages elsewhere."""

    @property
    def read_ahead(self) -> ReadAhead:
        """See `LanguageModel`."""
        ...

    def make_room(self, chunks: int, pinning: Pinning | None) -> None:
        """Take main memory for so many chunks of every stage that are set aside, before anything is launched."""
        ...

    def begin(self, segment: Segment, logit_rows: LogitRows, marks: Sequence[int]) -> Reading:
        """See `LanguageModel.begin_read`; of any number of chunks. Raises what that raises."""
        ...

    def read(self, segment: Segment, logit_rows: LogitRows) -> Output:
        """All rows of a checked segment; returns when the devices are done."""
        ...


class ChunkReads:
    """The reads of one stage, or of a chain of them. Not thread-safe."""

    def __init__(
        self, stages: Sequence[Stage], memories: Sequence[ChunkMemory], steps: ReadSteps | None = None
    ) -> None:
        """In the order of layers, a memory each. steps: what one is, and how much is launched beforehand."""
        line: list[StageReads] = []
        for stage, memory in zip(stages, memories, strict=True):
            line.append(StageReads(stage, memory, steps, line[-1] if line else None))
        self.line = tuple(line)
        self._last: Callable[[], ChunkReading | None] = lambda: None  # the read that went on last, if somebody has it

    @property
    def read_ahead(self) -> ReadAhead:
        """See `LanguageModel`: of the read that went on last."""
        reading = self._last()
        if reading is not None and not reading.is_over:
            return reading.ahead
        stages = [reads.pace.between_chunks() for reads in self.line]
        return ReadAhead(max(each.queued for each in stages), stages[0].next_step)

    def make_room(self, chunks: int, pinning: Pinning | None) -> None:
        """Take main memory for so many chunks of every stage that are set aside, before anything is launched."""
        for reads in self.line:
            reads.make_room(chunks, pinning)

    def begin(self, segment: Segment, logit_rows: LogitRows, marks: Sequence[int]) -> Reading:
        """See `LanguageModel.begin_read`; of any number of chunks, but for all logits. Raises what that raises."""
        reading = ChunkReading(self.line, segment, logit_rows, marks, self._note)
        self._note(reading)
        return reading

    def read(self, segment: Segment, logit_rows: LogitRows) -> Output:
        """All rows of a checked segment, chunk after chunk; returns when the devices are done."""
        most = segment.token_ids.shape[0] if logit_rows is not LogitRows.ALL else self.line[0].memory.capacity
        outputs = [
            self._read(Segment(segment.state, token_ids), logit_rows) for token_ids in segment.token_ids.split(most)
        ]
        for reads in self.line:
            reads.stage.wait_here()
        return Output(torch.cat([each.logits for each in outputs]), torch.cat([each.hidden for each in outputs]))

    def _note(self, reading: ChunkReading) -> None:
        self._last = weakref.ref(reading)

    def _read(self, segment: Segment, logit_rows: LogitRows) -> Output:
        reading = self.begin(segment, logit_rows, ())
        try:
            while not reading.advance():
                pass
            return reading.finish()
        finally:
            reading.cancel()
