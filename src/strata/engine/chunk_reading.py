"""A piece of a prompt that passes a stage layer by layer: see `models.base.Reading`.

Knows how far the host may be ahead, and what of a slot's state is kept on the way; knows no request. The slot's state
is half moved meanwhile: it counts as broken until the last row is part of it.
"""

from collections import deque

import torch

from strata.engine.stage import Stage
from strata.engine.stage_slots import SlotCopy, StageSlot, room_of_parts
from strata.models.base import LogitRows, Output, Segment
from strata.models.device.launches import Launch
from strata.models.device.reading.chunks import ChunkMemory, ChunkPlace
from strata.models.device.reading.walk import KeptState
from strata.models.row_model import first_logit_row, require_finite

AHEAD_MS = 50.0  # that a window which comes due may have to wait for: half of the gap that is bounded by default


class ChunkReading:
    """See `Reading`. The stage's windows may run between two steps."""

    def __init__(
        self, stage: Stage, memory: ChunkMemory, segment: Segment, logit_rows: LogitRows, mark: int | None
    ) -> None:
        """mark: see `LanguageModel.begin_read`. Raises ValueError beside another chunk, or for a wrong mark."""
        state: StageSlot = segment.state
        count = segment.token_ids.shape[0]
        if mark is not None and not (state.position < mark < state.position + count and mark % 64 == 0):
            raise ValueError(
                f"mark {mark} is no multiple of 64 inside rows {state.position} to {state.position + count}"
            )
        self.checkpoint: SlotCopy | None = None
        self._stage, self._state, self._count = stage, state, count
        self._first_logit_row = first_logit_row(logit_rows, count)
        kept = None
        if mark is not None:
            self.checkpoint = SlotCopy(room_of_parts(stage.state, state.index), mark)
            kept = KeptState(*self.checkpoint.parts)
        inside = None if mark is None else mark - state.position
        place = ChunkPlace(state.index, state.position, count, inside)
        self._chunk = memory.begin(place, segment.token_ids, kept)
        state.begin_read()
        self._ends: deque[torch.cuda.Event] = deque()  # of the steps that were launched and not waited for
        self._last_end: torch.cuda.Event | None = None  # of those that were
        self._step_ms = 0.0  # of the last one of these

    def advance(self) -> bool:
        """See `Reading.advance`. Returns while the device computes this step, and perhaps the one before it."""
        while self._ends and (len(self._ends) > 1 or 2 * self._step_ms > AHEAD_MS):
            self._wait_for_step()
        self._chunk.step(_run)
        if self._stage.device.type == "cuda":
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            self._ends.append(end)
        return self._chunk.is_through

    def _wait_for_step(self) -> None:
        end = self._ends.popleft()
        end.synchronize()
        if self._last_end is not None:
            self._step_ms = self._last_end.elapsed_time(end)
        self._last_end = end

    def finish(self) -> Output:
        """See `Reading.finish`. Returns when the device is done. Raises EngineError for logits that are no numbers."""
        logits = [torch.empty(0, self._stage.vocabulary)]
        if self._first_logit_row < self._count:
            logits += [each.to("cpu", copy=True) for each in self._chunk.logits(self._first_logit_row, _run)]
        self._stage.wait_here()
        self._chunk.end()
        wanted = torch.cat(logits)
        require_finite(wanted, "the prompt's last row")
        self._state.end_read(self._count)
        return Output(wanted, torch.empty(self._count, 0))

    def cancel(self) -> None:
        """See `Reading.cancel`: waits for what was launched. Once more changes nothing."""
        self._stage.wait_here()
        self._chunk.end()


def _run(launch: Launch) -> None:
    launch.run()
