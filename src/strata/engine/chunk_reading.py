"""A piece of a prompt that passes a stage step by step: see `models.base.Reading`.

A step is a layer of the chunk, or one of its legs: dense parts, or the experts of one tile. The head is steps of its
own. Knows what of a slot's state is kept on the way; knows no request. The slot's state is half moved meanwhile: it
counts as broken until the last row is part of it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch

from strata.engine.read_pace import LegPlace, ReadPace
from strata.engine.stage import Stage
from strata.engine.stage_slots import StageSlot
from strata.experts.feed import Copying
from strata.models.base import LogitRows, Output, Segment
from strata.models.device.launches import Launch
from strata.models.device.reading.chunks import ChunkMemory, ChunkPlace
from strata.models.device.reading.mlps import COUNTED_ROWS, HOLD_STEP
from strata.models.device.reading.walk import KeptState, Leg
from strata.models.row_model import first_logit_row, require_finite
from strata.types import ReadAhead


class ChunkReading:
    """See `Reading`. The stage's windows may run between two steps."""

    def __init__(
        self,
        stage: Stage,
        memory: ChunkMemory,
        pace: ReadPace,
        segment: Segment,
        logit_rows: LogitRows,
        marks: Sequence[int],
    ) -> None:
        """marks: see `LanguageModel.begin_read`. Raises ValueError beside another chunk, or for a wrong mark."""
        state: StageSlot = segment.state
        count = segment.token_ids.shape[0]
        for mark in marks:
            if mark % 64 or not state.position < mark < state.position + count:
                raise ValueError(
                    f"mark {mark} is no multiple of 64 inside rows {state.position} to {state.position + count}"
                )
        self._stage, self._state, self._count = stage, state, count
        self._first_logit_row = first_logit_row(logit_rows, count)
        self.checkpoints = tuple(map(state.room_for_copy, marks))
        first = state.position
        kept = {mark - first: KeptState(*each.parts) for mark, each in zip(marks, self.checkpoints, strict=True)}
        self._counts = logit_rows is LogitRows.LAST and count >= COUNTED_ROWS
        place = ChunkPlace(state.index, state.position, count, tuple(kept), self._counts)
        self._chunk = memory.begin(place, segment.token_ids, kept)
        state.begin_read()
        self._memory, self._pace, self._layers = memory, pace, len(memory.model.layers)
        self._rows = count.bit_length()
        self._heads: Iterator[torch.Tensor] | None = None
        self._logits = [torch.empty(0, stage.vocabulary)]
        self.is_over = False

    def advance(self) -> bool:
        """See `Reading.advance`. Returns while the device computes this step, and perhaps steps before it.

        Where too much is queued it returns after a while with nothing done.
        """
        leg = self._chunk.coming
        if leg is None:
            return self._advance_head()
        if not self._pace.wait_for_room(self._place(leg), self._memory.feed.copying):
            return False
        is_long = not self._pace.steps.by_tiles
        self._launch(leg)
        while is_long and self._chunk.coming is not None and self._chunk.coming.layer == leg.layer:
            self._launch(self._chunk.coming)
        return self._chunk.is_through and self._first_logit_row == self._count

    def finish(self) -> Output:
        """See `Reading.finish`. What was launched may still run. Raises EngineError for logits that are no numbers."""
        self.is_over = True
        self._chunk.end()
        wanted = torch.cat(self._logits)
        require_finite(wanted, "the prompt's last row")
        self._state.end_read(self._count)
        tiers, asked = self._stage.model.tiers, self._memory.asked
        if self._counts and tiers is not None and asked is not None:  # the last row's logits are there: nobody waits
            tiers.prompt_was_read(asked.to("cpu", copy=True).numpy())
        return Output(wanted, torch.empty(self._count, 0))

    def cancel(self) -> None:
        """See `Reading.cancel`: waits for what was launched, unless the read is over. Once more changes nothing."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self._stage.wait_here()
            self._pace.break_off()
        finally:
            self._chunk.end()

    @property
    def ahead(self) -> ReadAhead:
        """See `LanguageModel.read_ahead`, of this read."""
        leg = self._chunk.coming
        if leg is None:
            return ReadAhead(self._pace.queued, 0.0)
        return self._pace.ahead(self._place(leg), self._memory.feed.copying, has_next=leg.layer + 1 < self._layers)

    def _advance_head(self) -> bool:
        """A step's end to wait for, or the logits of some rows; True behind the last of them."""
        if self._pace.wait_for_step():
            return False
        if self._heads is None:
            self._heads = self._chunk.logits(self._first_logit_row, _run)
        self._logits += [each.to("cpu", copy=True) for each in islice(self._heads, 1)]
        return sum(map(len, self._logits)) == self._count - self._first_logit_row

    def _launch(self, leg: Leg) -> None:
        copying = self._memory.feed.copying if leg.sent_bytes else Copying()
        sending = leg.sent_bytes * copying.for_a_byte
        arrival = copying.arrivals[0] if copying.arrivals else 0.0
        self._pace.launch(self._place(leg), sending, arrival, self._launch_leg)
        self._chunk.go_on()

    def _launch_leg(self, note_arrival: Callable[[], None]) -> None:
        def run(launch: Launch) -> None:
            launch.run()
            if launch.step == HOLD_STEP:
                note_arrival()

        self._chunk.launch(run)

    def _place(self, leg: Leg) -> LegPlace:
        return LegPlace(self._rows, leg.layer, leg.number)


def _run(launch: Launch) -> None:
    launch.run()
