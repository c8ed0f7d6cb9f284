"""One stage's part in reads of prompts: which chunk has its memory, and how far the host is ahead of it.

A *pass* is one chunk on its way through the layers of one stage. Who wants the memory that another pass has lets that
one end its layer, and then it is set aside: what it needs again is copied out, and in again when it goes on. Knows
chunks; knows no prompt and no other stage but the one in front, from which streams come.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice

import torch

from strata.engine.checkpoint_room import CheckpointRoom, PartShape, no_room
from strata.engine.hand_off import HandOff, hand_off_between, pass_on
from strata.engine.prompt_checks import PromptChecks
from strata.engine.read_pace import COMES_IN, GOES_OUT, HANDS_OVER, LegPlace, ReadPace, ReadSteps
from strata.engine.stage import Stage
from strata.engine.stage_slots import SlotCopy
from strata.experts.feed import Copying
from strata.experts.host_memory import Pinning
from strata.experts.streams import CudaMark, Mark
from strata.models.device.launches import Launch
from strata.models.device.reading.chunks import Chunk, ChunkMemory, ChunkPlace, LegAhead
from strata.models.device.reading.mlps import HOLD_STEP
from strata.models.device.reading.walk import KeptState
from strata.types import ReadAhead


@dataclass(frozen=True)
class PassRows:
    """What passes."""

    place: ChunkPlace
    token_ids: torch.Tensor  # int64 [rows], in main memory
    kept: Mapping[int, SlotCopy]  # where the state at each mark goes, by the mark's row
    first_logit_row: int  # of the chunk; its count: no head is computed


class _Aside:
    """A chunk's copy; the room has its memory back when this is gone."""

    parts: Sequence[torch.Tensor] = ()  # as `ChunkMemory.lasting`
    copied: Mark  # behind what fills them


class StageReads:
    """One stage, its memory for chunks, and who has it. Not thread-safe."""

    def __init__(
        self, stage: Stage, memory: ChunkMemory, steps: ReadSteps | None = None, before: "StageReads | None" = None
    ) -> None:
        """before: the stage from which chunks come."""
        self.number: int = 0 if before is None else before.number + 1
        self.stage, self.memory = stage, memory
        self.pace = ReadPace.on(stage.device, steps)
        self.layers = len(memory.model.layers)
        self.holder: ChunkPass | None = None
        self.room = no_room(self._shapes())
        self._leaving: list[tuple[_Aside, Mark]] = []  # copies that the stage behind has yet to read
        self.checks = PromptChecks(stage.device, self.pace.mark)
        self.hand_off: HandOff | None = None
        if before is not None:
            self.hand_off = hand_off_between(before.stage.device, stage.device)

    def make_room(self, chunks: int, pinning: Pinning | None) -> None:
        """Take main memory for so many chunks that are set aside; more of them have memory of their own."""
        self.room = CheckpointRoom(self._shapes(), chunks, pinning)

    def copy_of(self, chunk: Chunk) -> _Aside:
        """Set the chunk aside."""
        self._leaving = [(aside, read) for aside, read in self._leaving if not read.is_passed()]
        aside = _Aside()
        aside.parts = self.room.take(aside, self.memory.lasting(self.memory.capacity))
        chunk.set_aside(aside.parts)
        aside.copied = self.pace.mark()
        return aside

    def read_elsewhere(self, aside: _Aside, reader: "StageReads", streams: torch.Tensor) -> None:
        """Another stage copies the streams of a chunk that is set aside here."""
        reader.hold(aside.copied)
        streams.copy_(aside.parts[0][: streams.shape[0]], non_blocking=True)
        self._leaving.append((aside, reader.pace.mark()))

    def hold(self, mark: Mark) -> None:
        """What is launched from now on starts once this mark of another stage is passed."""
        if isinstance(mark, CudaMark):
            torch.cuda.current_stream(self.stage.device).wait_event(mark.event)
        else:
            assert mark.is_passed(), "what is launched elsewhere than on a card is done"

    def new_pass(self, rows: PassRows, source: "ChunkPass | None") -> "ChunkPass":
        """A chunk that has not come in; source: see `ChunkPass`. Raises ValueError for rows that do not fit."""
        return ChunkPass(self, rows, source)

    def launching(self) -> AbstractContextManager[object]:
        """Around launches: on the stage's device."""
        return torch.cuda.device(self.stage.device) if self.stage.device.type == "cuda" else nullcontext()

    def _shapes(self) -> list[PartShape]:
        return [PartShape(tuple(each.shape), each.dtype) for each in self.memory.lasting(self.memory.capacity)]


class ChunkPass:
    """One chunk on one stage: it comes in, goes on step by step, may be set aside in between, and ends."""

    def __init__(self, reads: StageReads, rows: PassRows, source: "ChunkPass | None") -> None:
        """source: its pass through the stage in front, which waits, and ends when this one comes in."""
        reads.memory.check(rows.place)
        self.rows = rows
        self.logits: list[torch.Tensor] = []  # float32 [rows, vocabulary] in main memory, of the rows so far
        self.asked: torch.Tensor | None = None  # of a pass that has ended: see `ChunkMemory.asked`
        self.is_finite: torch.Tensor | None = None  # of one that left the last stage without a head: see `Chunk`
        self.is_over = False
        self._reads, self._source = reads, source
        self._chunk: Chunk | None = None  # None: it has not come in
        self._aside: _Aside | None = None
        self._heads: Iterator[torch.Tensor] | None = None
        self._failure: Exception | None = None  # met when another one wanted the memory

    @property
    def waits(self) -> bool:
        """Whether the stage behind this one is to take it."""
        is_through = self._chunk is not None and self._chunk.is_through
        return is_through and not self.is_over and not self._reads.memory.model.is_last

    @property
    def has_memory(self) -> bool:
        """Whether the next step of this stage may be its."""
        return self._reads.holder is self

    @property
    def queued(self) -> float:
        """Seconds of what its device has to do, about."""
        return self._reads.pace.queued

    @property
    def ahead(self) -> ReadAhead:
        """What the device has to do for it."""
        reads = self._reads
        leg = LegAhead(0, 0) if self._chunk is None else self._chunk.coming
        if leg is None or self.is_over:
            return ReadAhead(reads.pace.queued, 0.0)
        if self.has_memory:
            has_next = leg.layer + 1 < reads.layers
            return reads.pace.ahead(self._place(leg), reads.memory.feed.copying, has_next=has_next)
        out = () if reads.holder is None else (reads.holder._place(LegAhead(GOES_OUT, 0)),)
        return reads.pace.ahead_of(self._place(leg), (*out, self._entry) if self._is_copied_in else out)

    def check(self) -> None:
        """Raise what went wrong with it when another one wanted the memory."""
        if self._failure is not None:
            raise self._failure

    def begin_if_free(self) -> None:
        """Come in at once if nobody has the memory and no streams are waited for: experts are on their way early."""
        if self._reads.holder is None and self._source is None:
            with self._reads.launching():
                self._come_in()

    def advance(self) -> bool:
        """A step towards its end, if the device has room for it; whether there was one.

        It may be another chunk's that has the memory.
        """
        with self._reads.launching():
            if not self.has_memory:
                if self._reads.holder is not None:
                    return self._reads.holder.give_way()
                if self._is_copied_in and not self._reads.pace.has_room(self._entry, Copying(), self._arrival):
                    return False
                self._come_in()
            return self._step()

    def give_way(self) -> bool:
        """A step towards leaving the memory to another chunk: its layer is ended, then it is set aside.

        What goes wrong ends this one, and is its reader's matter: see `check`.
        """
        try:
            chunk = self._chunk
            assert chunk is not None, "who has the memory came in"
            if chunk.is_between_layers and not (chunk.is_through and self._reads.memory.model.is_last):
                return self._set_aside(chunk)
            return self._step()
        except Exception as failure:
            self._failure = failure
            self.end()
            return True

    def give_streams(self, hand_off: HandOff, target: "StageReads", streams: torch.Tensor) -> None:
        """Behind its layers: copy the rows' streams to the stage behind, in the order of launches; and end."""
        if self._aside is not None:
            self._reads.read_elsewhere(self._aside, target, streams)
            with self._reads.launching():
                self._end_well(None if self._reads.memory.asked is None else self._aside.parts[-1])
            return
        chunk, pace, queued = self._chunk, self._reads.pace, target.pace.queued
        assert chunk is not None and self.has_memory, "what is through has its memory, or is set aside"

        def leave(note_arrival: Callable[[], None]) -> None:
            hand_off.before_overwriting()
            note_arrival()

        with self._reads.launching():
            pass_on(hand_off, [chunk.whole_streams()], [streams])
            pace.launch(self._place(LegAhead(HANDS_OVER, 0)), 0.0, queued, leave)
            self._end_well(self._reads.memory.asked)

    def cancel(self) -> None:
        """Give it up, wherever it is: waits for what was launched. Once more changes nothing."""
        if self.is_over:
            return
        try:
            if self.has_memory:
                self._reads.stage.wait_here()
                self._reads.pace.break_off()
        finally:
            self.end()

    def end(self) -> None:
        """Nothing is launched for it any more."""
        self.is_over, self._aside = True, None
        if self._chunk is not None:
            self._chunk.end()
        if self.has_memory:
            self._reads.holder = None

    @property
    def _entry(self) -> LegPlace:
        return self._place(LegAhead(COMES_IN, 0))

    @property
    def _is_copied_in(self) -> bool:
        return self._source is not None or self._aside is not None

    @property
    def _arrival(self) -> float:
        """Seconds until what comes in is there."""
        return 0.0 if self._source is None else self._source._reads.pace.queued

    def _come_in(self) -> None:
        if self._is_copied_in:
            self._reads.pace.launch(self._entry, 0.0, self._arrival, self._enter)
        else:
            self._enter(lambda: None)  # there is nothing to measure

    def _enter(self, note_arrival: Callable[[], None]) -> None:
        memory = self._reads.memory
        if self._chunk is not None and self._aside is not None:
            self._chunk.take_back(self._aside.parts)
            self._aside = None
        else:
            kept = {row: KeptState(*copy.parts_of(self._reads.number)) for row, copy in self.rows.kept.items()}
            self._chunk = memory.begin(self.rows.place, self.rows.token_ids, kept)
        self._reads.holder = self
        if self._source is not None:
            assert self._reads.hand_off is not None, "a stage with one in front of it"
            self._source.give_streams(self._reads.hand_off, self._reads, self._chunk.whole_streams())
            self._source = None
        note_arrival()

    def _set_aside(self, chunk: Chunk) -> bool:
        """One that has not begun simply comes in later."""
        reads, place = self._reads, self._place(LegAhead(GOES_OUT, 0))
        if chunk.coming == LegAhead(0, 0) and reads.hand_off is None:
            chunk.end()
            self._chunk = reads.holder = None
            return True
        if not reads.pace.has_room(place, Copying()):
            return False

        def leave(note_arrival: Callable[[], None]) -> None:
            self._aside = reads.copy_of(chunk)

        reads.pace.launch(place, 0.0, 0.0, leave)
        reads.holder = None
        return True

    def _step(self) -> bool:
        chunk, pace = self._chunk, self._reads.pace
        assert chunk is not None, "who has the memory came in"
        leg = chunk.coming
        if leg is None:
            return self._advance_head(chunk)
        if not pace.has_room(self._place(leg), self._reads.memory.feed.copying):
            return False
        self._launch(chunk, leg)
        while not pace.steps.by_tiles and chunk.coming is not None and not chunk.is_between_layers:
            self._launch(chunk, chunk.coming)
        has_head = self.rows.first_logit_row < self.rows.place.count
        if chunk.is_through and self._reads.memory.model.is_last and not has_head:
            self.is_finite = chunk.is_finite()
            self._end_well(self._reads.memory.asked)
        return True

    def _advance_head(self, chunk: Chunk) -> bool:
        """A step's end to wait for, or the logits of some rows; behind the last of them it ends."""
        if not self._reads.memory.model.is_last:
            return False
        if self._reads.pace.wait_for_step():
            return True
        if self._heads is None:
            self._heads = chunk.logits(self.rows.first_logit_row, _run)
        self.logits += [each.to("cpu", copy=True) for each in islice(self._heads, 1)]
        if sum(map(len, self.logits)) == self.rows.place.count - self.rows.first_logit_row:
            self._end_well(self._reads.memory.asked)
        return True

    def _end_well(self, asked: torch.Tensor | None) -> None:
        if self.rows.place.counts and asked is not None:
            on_device = torch.empty_like(asked, device=self._reads.stage.device)
            self.asked = on_device.copy_(asked, non_blocking=True)  # the next chunk counts there
        self.end()

    def _launch(self, chunk: Chunk, leg: LegAhead) -> None:
        copying = self._reads.memory.feed.copying if leg.sent_bytes else Copying()
        sending = leg.sent_bytes * copying.for_a_byte
        arrival = copying.arrivals[0] if copying.arrivals else 0.0

        def launch_leg(note_arrival: Callable[[], None]) -> None:
            def run(launch: Launch) -> None:
                launch.run()
                if launch.step == HOLD_STEP:
                    note_arrival()

            chunk.launch(run)

        self._reads.pace.launch(self._place(leg), sending, arrival, launch_leg)
        chunk.go_on()

    def _place(self, leg: LegAhead) -> LegPlace:
        return LegPlace(self.rows.place.count.bit_length(), leg.layer, leg.number)


def _run(launch: Launch) -> None:
    launch.run()
