"""One stage's part in reads: how far the host is ahead of pretended devices, and where chunks go that are set aside."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from strata.engine.chunk_reads import ChunkReads
from strata.engine.read_pace import COMES_IN, HANDS_OVER, LegPlace, ReadPace, ReadSteps
from strata.engine.stage_model import StageModel
from strata.models.base import LogitRows, Segment
from tests.engine.chunked_stages import chunked_model
from tests.engine.pretended_device import Device
from tests.engine.test_chain_reads import reading_chain
from tests.random_text import text_of

LEG, COPY, MOST_AHEAD = 0.004, 0.002, 0.05  # seconds
LONG, SHORT = text_of(200), text_of(100, 3)
CHUNKS, CUT = 4, 2  # of LONG; the first layer of the second stage
FIRST_LEGS, SECOND_LEGS, ALL_LEGS = 6, 7, 12  # of a chunk on each of both, and on one stage


@dataclass
class Clock:
    """The host's, which all devices share."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Stage(Device):
    """See `Device`, by a clock that it shares."""

    def __init__(self, clock: Clock) -> None:
        self._shared, self.busy_until, self.worked = clock, 0.0, 0.0

    @property
    def now(self) -> float:
        return self._shared.now

    @now.setter
    def now(self, value: float) -> None:
        self._shared.now = value


class WorkingPace(ReadPace):
    """Every leg takes its device a while; a hand-off begins when both stages are done with what they have."""

    def __init__(self, stages: list[Stage], number: int, clock: Clock) -> None:
        self._stages, self._number = stages, number
        stage = stages[number]
        super().__init__(ReadSteps(MOST_AHEAD), stage.mark, clock, clock.sleep)

    def launch(
        self, place: LegPlace, sending: float, arrival: float, launch: Callable[[Callable[[], None]], None]
    ) -> None:
        stage = self._stages[self._number]

        def working(note_arrival: Callable[[], None]) -> None:
            if place.layer == COMES_IN and self._number:
                self._wait_for(self._number - 1)
            if place.layer == HANDS_OVER:
                self._wait_for(self._number + 1)
            launch(note_arrival)
            seconds = LEG if place.layer >= 0 else COPY
            stage.work(seconds)
            stage.worked += seconds

        super().launch(place, sending, arrival, working)

    def _wait_for(self, other: int) -> None:
        stage = self._stages[self._number]
        stage.busy_until = max(stage.busy_until, stage.now, self._stages[other].busy_until)


@dataclass
class Pretended:
    """A chain whose stages are pretended devices."""

    model: StageModel
    clock: Clock = field(default_factory=Clock)
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert isinstance(self.model.reads, ChunkReads)
        self.stages += [Stage(self.clock) for _ in self.model.reads.line]
        for number, reads in enumerate(self.model.reads.line):
            reads.pace = WorkingPace(self.stages, number, self.clock)

    @property
    def longest_queue(self) -> float:
        return max(stage.busy_until - self.clock.now for stage in self.stages)

    def read(self, text: torch.Tensor) -> tuple[float, float]:
        """Seconds until all devices are done, and of the longest queue behind the first chunks."""
        state, began, longest = self.model.new_state(), self.clock.now, 0.0
        reading = self.model.begin_read(Segment(state, text), LogitRows.NONE)
        while not reading.advance():
            longest = max(longest, self.longest_queue)
        reading.finish()
        self.model.release(state)
        end = max(stage.busy_until for stage in self.stages)
        self.clock.now = max(self.clock.now, end)
        return end - began, longest


def test_stages_work_at_the_same_time_and_no_window_is_behind_much() -> None:
    """A chunk takes 24 ms on the first one and 28 on the second: four of them take 24 and four times 28, and copies."""
    pretended = Pretended(reading_chain("qwen4_exp", (CUT,)))
    pretended.read(LONG)  # now its legs are known
    seconds, longest = pretended.read(LONG)
    least = (FIRST_LEGS + CHUNKS * SECOND_LEGS) * LEG
    assert least <= seconds <= least + (CHUNKS + 1) * COPY
    assert 0.5 * MOST_AHEAD < longest <= MOST_AHEAD + COPY


def test_what_is_ahead_of_a_run_is_that_of_its_busiest_stage() -> None:
    pretended = Pretended(reading_chain("qwen4_exp", (CUT,)))
    pretended.read(LONG)
    model, (first, second) = pretended.model, pretended.stages
    assert model.read_ahead.next_step == pytest.approx(3 * LEG)  # taken to begin as the last one did
    reading = model.begin_read(Segment(model.new_state(), LONG), LogitRows.NONE)
    seen = 0.0
    while not reading.advance():
        ahead = model.read_ahead
        busiest = max(first.busy_until, second.busy_until) - pretended.clock.now
        assert ahead.queued == pytest.approx(max(0.0, busiest), abs=COPY + 1e-6)
        assert ahead.next_step is not None and ahead.spare == 0.0
        seen = max(seen, ahead.next_step)
    assert 4 * LEG <= seen <= 4 * LEG + COPY
    reading.cancel()


def test_a_read_that_gives_way_lets_the_other_one_begin_behind_what_is_queued() -> None:
    """Copies out and in count as the device's time; both reads' legs keep being known."""
    pretended = Pretended(chunked_model("qwen4_exp", context=256))
    model = pretended.model
    for text in (LONG, SHORT):
        pretended.read(text)
    state, other = model.new_state(), model.new_state()
    reading = model.begin_read(Segment(state, LONG), LogitRows.NONE)
    reading.advance()
    reading.advance()
    beside = model.begin_read(Segment(other, SHORT), LogitRows.NONE)
    worked, began = pretended.stages[0].worked, pretended.clock.now
    while not beside.advance():
        assert pretended.longest_queue <= MOST_AHEAD + 1e-9
    assert pretended.stages[0].worked - worked == pytest.approx(COPY + ALL_LEGS * LEG)
    beside.finish()
    model.release(other)
    ahead = reading.ahead  # type: ignore[attr-defined]
    assert ahead.next_step == pytest.approx(3 * LEG + COPY) and ahead.spare == 0.0
    while not reading.advance():
        assert pretended.longest_queue <= MOST_AHEAD + 1e-9
        assert model.read_ahead == reading.ahead  # type: ignore[attr-defined]  # of who went on last
    assert pretended.clock.now - began <= 2 * (ALL_LEGS * LEG + COPY)
    reading.finish()
    assert isinstance(model.reads, ChunkReads)
    known = model.reads.line[0].pace.times.from_leg(LegPlace(len(LONG).bit_length(), 3, 0))
    assert [leg.work for leg in known] == pytest.approx([LEG] * 4)


def test_one_chunk_is_set_aside_into_memory_that_was_made_for_it_and_more_into_their_own() -> None:
    model = chunked_model("qwen4_exp", slots=4)
    reads = model.reads
    assert isinstance(reads, ChunkReads)
    reads.make_room(1, None)
    room = reads.line[0].room
    assert room.piece_bytes >= 256 * 4 * model.stage.stages[0].model.stream_width
    states = [model.new_state() for _ in range(3)]
    readings = []
    for number, state in enumerate(states):
        readings.append(model.begin_read(Segment(state, text_of(70, number))))
        for _ in range(3):
            readings[-1].advance()
        assert room.free_pieces == (1 if number == 0 else 0)
    readings[1].cancel()
    assert room.free_pieces == 0
    for _ in range(2):
        readings[0].advance()  # the third one, too, has memory of its own; the first one's is free again
    assert room.free_pieces == 1
    for reading in readings:
        reading.cancel()
