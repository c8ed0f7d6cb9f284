"""How far the host is ahead of a device that reads prompts, by the device's own time.

Knows *legs*, stretches of launches between which the device may work for others: what each took last, which ones were
launched and have not ended, when the experts that they wait for are there. Knows no launch and no row. What legs took
is kept from chunk to chunk: by the chunk's rows (to a power of two), the layer, and the leg's number in it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf

import torch

from strata.experts.feed import Copying
from strata.experts.streams import CudaMark, Mark
from strata.settings import EngineSettings
from strata.types import ReadAhead

SLEEP = 2e-4  # seconds, between two looks at what has ended
LONGEST_WAIT = 0.004  # for room: others may want something meanwhile
LaunchLeg = Callable[[Callable[[], None]], None]
# Stand for a layer: a chunk's streams on their way into its memory, out of it, and to the next stage.
COMES_IN, GOES_OUT, HANDS_OVER = -1, -2, -3


@dataclass(frozen=True)
class ReadSteps:
    """What a step of a read is, and how much may be launched beforehand."""

    most_ahead: float = 0.05  # seconds of the device's work that a window may find in front of it
    by_tiles: bool = False  # a step is a leg, and not all legs of a layer

    @classmethod
    def of(cls, settings: EngineSettings) -> "ReadSteps":
        """As the settings say: half of the longest gap at most is launched beforehand."""
        return cls(settings.max_gap_ms / 2000, settings.read_step == "tile")


@dataclass(frozen=True)
class LegPlace:
    """Which leg of which chunks."""

    rows: int  # of the chunk, as a power of two
    layer: int  # or COMES_IN, GOES_OUT, HANDS_OVER
    number: int  # of the layer's legs


@dataclass(frozen=True)
class LegTime:
    """What a leg took last, in seconds."""

    work: float  # without waiting for experts
    sending: float = 0.0  # these, if it waits for some
    launching: float = 0.0  # of the host


class LegTimes:
    """What legs took last."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, list[LegTime]]] = {}  # by rows and layer
        self._last: LegPlace | None = None

    def note(self, place: LegPlace, taken: LegTime) -> None:
        """Legs are noted in the order in which they ran."""
        last, self._last = self._last, place
        if last is not None and last.layer != place.layer:  # that layer has no more legs than these
            del self._known[last.rows][last.layer][last.number + 1 :]
        legs = self._known.setdefault(place.rows, {}).setdefault(place.layer, [])
        if place.number < len(legs):  # the host may have been held up once
            taken = replace(taken, launching=min(taken.launching, legs[place.number].launching))
        legs[place.number : place.number + 1] = [taken]

    def break_off(self) -> None:
        """Behind the leg that was noted last its layer may have more: the chunk was given up."""
        self._last = None

    def from_leg(self, place: LegPlace) -> Sequence[LegTime]:
        """This leg of a layer and those behind it; of an unknown layer as the longest known one, () if none is.

        Of an unknown copy of streams as another one, or as a layer.
        """
        known = self._known.get(place.rows, {})
        copies = [legs for layer, legs in known.items() if layer < 0]
        layers = [legs for layer, legs in known.items() if layer >= 0]
        alike = copies if copies and place.layer < 0 else layers
        legs = known.get(place.layer) or max(alike, key=_whole, default=[])
        return legs[place.number :]


def time_through(start: float, legs: Iterable[LegTime], arrival: float) -> float:
    """When legs end that begin at `start`. arrival: when the first experts are there that one of them waits for."""
    for leg in legs:
        if leg.sending:
            start, arrival = max(start, arrival), arrival + leg.sending
        start += leg.work
    return start


def time_to_spare(start: float, legs: Iterable[LegTime], arrivals: Sequence[float]) -> float:
    """For how long a device may work for others at `start` and end these legs no later.

    arrivals: of the experts that are on their way; when a leg has used some, as many more are sent. Every time is the
    later one of two: one that moves with what is put in front, and one that only copying makes.
    """
    moves, stays = start, -inf
    road = deque((-inf, arrival) for arrival in arrivals)
    last = road[-1] if road else (-inf, -inf)
    for leg in legs:
        if leg.sending:
            there = road.popleft() if road else (moves + leg.sending, stays + leg.sending)
            moves, stays = max(moves, there[0]), max(stays, there[1])
        moves, stays = moves + leg.work, stays + leg.work
        if leg.sending:
            last = max(last[0], moves) + leg.sending, max(last[1], stays) + leg.sending
            road.append(last)
    return max(0.0, stays - moves)


@dataclass(frozen=True)
class _Flight:
    """A leg that was launched."""

    place: LegPlace
    work: float  # as it took last; infinite if that is not known
    sending: float  # seconds that sending its experts takes
    arrival: float  # when what it waits for is there, about, on the host's clock
    launched: float  # on the host's clock
    launching: float  # seconds of the host
    begun: Mark
    there: Mark | None  # behind its waiting for experts
    ended: Mark


class ReadPace:
    """The legs of one device's reads. Not thread-safe."""

    def __init__(
        self,
        steps: ReadSteps,
        make_mark: Callable[[], Mark],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """make_mark: behind what was launched so far."""
        self.steps, self.times = steps, LegTimes()
        self._make_mark, self._clock, self._sleep = make_mark, clock, sleep
        self._in_flight: deque[_Flight] = deque()
        self._seen = 0.0  # when a leg was seen to have ended
        self._rows: int | None = None  # of the last leg's place

    @classmethod
    def on(cls, device: torch.device, steps: ReadSteps | None = None) -> "ReadPace":
        """Of what this thread launches on a device."""
        if device.type == "cuda":
            return cls(steps or ReadSteps(), lambda: CudaMark(torch.cuda.current_stream(device)))
        return cls(steps or ReadSteps(), ClockMark)

    def mark(self) -> Mark:
        """Behind what was launched so far."""
        return self._make_mark()

    @property
    def queued(self) -> float:
        """Seconds of what was launched and has not ended, about; infinite if it has a leg of an unknown kind."""
        self._see_ends()
        now = self._clock()
        return max(0.0, self._end() - now) if self._in_flight else 0.0

    def step_of(self, place: LegPlace) -> Sequence[LegTime]:
        """The legs of the step that begins with this one; () if nothing like it is known."""
        coming = self.times.from_leg(place)
        return coming[:1] if self.steps.by_tiles else coming

    def has_room(self, place: LegPlace, copying: Copying, arrival: float = 0.0) -> bool:
        """Whether the step that begins with this leg may be launched: at most `most_ahead` seconds are queued with it,
        or it stands alone. The host takes its time for launching, in which the device goes on.

        arrival: seconds until what it waits for is there, beside experts.
        """
        self._see_ends()
        if not self._in_flight:
            return True
        step, now = self.step_of(place), self._clock()
        if not step:
            return False
        begin = max(self._end(), now + arrival)
        end = time_through(begin, step, now + next(iter(copying.arrivals), 0.0))
        return end - (now + sum(leg.launching for leg in step)) <= self.steps.most_ahead

    def until(self, was_done: Callable[[], bool]) -> bool:
        """Have something done that needs room, but do not wait for long; whether it was."""
        began = self._clock()
        while not was_done():
            if self._clock() - began >= LONGEST_WAIT:
                return False
            self._sleep(SLEEP)
        return True

    def wait_for_step(self) -> bool:
        """Until the oldest step in flight has ended; whether there was one."""
        self._see_ends()
        if not self._in_flight:
            return False
        layer = self._in_flight[0].place.layer
        of_layer = sum(1 for _ in takewhile(lambda each: each.place.layer == layer, self._in_flight))
        self._wait_for(1 if self.steps.by_tiles else of_layer)
        return True

    def ahead(self, place: LegPlace, copying: Copying, *, has_next: bool) -> ReadAhead:
        """What the device has to do for a chunk whose next leg this is; has_next: behind its layer comes another."""
        queued, coming = self.queued, self.times.from_leg(place)
        if not coming:
            return ReadAhead(queued)
        step = self.step_of(place)
        end = time_through(queued, step, next(iter(copying.arrivals), 0.0))
        end = max(end, sum(leg.launching for leg in step))  # the host takes its time, too
        if has_next:
            coming = (*coming, *self.times.from_leg(LegPlace(place.rows, place.layer + 1, 0)))
        return ReadAhead(queued, end - queued, time_to_spare(queued, coming, copying.arrivals))

    def between_chunks(self) -> ReadAhead:
        """The same behind a chunk: the next one is taken to begin as that one did, and its experts are not sent yet."""
        return ReadAhead(self.queued) if self._rows is None else self.ahead_of(LegPlace(self._rows, 0, 0))

    def ahead_of(self, place: LegPlace, entry: Sequence[LegPlace] = ()) -> ReadAhead:
        """The same of a chunk that goes on with this leg and whose experts are not sent yet.

        entry: what is copied before that.
        """
        queued, step = self.queued, self.step_of(place)
        if not step:
            return ReadAhead(queued)
        copies = [leg for each in entry for leg in self.step_of(each)]
        first = next((leg.sending for leg in step if leg.sending), 0.0)
        return ReadAhead(queued, time_through(queued, [*copies, *step], first) - queued)

    def launch(self, place: LegPlace, sending: float, arrival: float, launch: LaunchLeg) -> None:
        """Launch a leg. sending: seconds that sending its experts takes, 0: it waits for none.

        arrival: seconds until they are there, or whatever else it waits for; launch: is handed what it calls between
        waiting and working.
        """
        self._rows, there = place.rows, list[Mark]()
        launched, begun = self._clock(), self._make_mark()
        launch(lambda: there.append(self._make_mark()))
        behind_waiting = there[0] if there else None
        work = next((leg.work for leg in self.times.from_leg(place)), inf)
        arrival = launched + arrival if sending or arrival else -inf
        launching = self._clock() - launched
        self._in_flight.append(
            _Flight(place, work, sending, arrival, launched, launching, begun, behind_waiting, self._make_mark())
        )

    def break_off(self) -> None:
        """The chunk is given up, and all that was launched for it has ended."""
        self._see_ends()
        self.times.break_off()

    def _end(self) -> float:
        """When all in flight will have ended, about, on the host's clock."""
        end = max(self._in_flight[0].launched, self._seen)
        for number, leg in enumerate(self._in_flight):
            end = max(end, leg.arrival) + leg.work
            if not number:  # it has not ended, whatever was thought
                end = max(end, self._clock())
        return end

    def _wait_for(self, legs: int) -> None:
        self._in_flight[legs - 1].ended.wait()
        self._see_ends()

    def _see_ends(self) -> None:
        while self._in_flight and self._in_flight[0].ended.is_passed():
            leg = self._in_flight.popleft()
            self._seen = self._clock()
            work = leg.ended.seconds_since(leg.begun if leg.there is None else leg.there)
            self.times.note(leg.place, LegTime(work, leg.sending, leg.launching))


class ClockMark:
    """A mark of a road whose calls are done when they return. See `Mark`."""

    def __init__(self) -> None:
        self._made = time.perf_counter()

    def is_passed(self) -> bool:
        """See `Mark`."""
        return True

    def wait(self) -> None:
        """See `Mark`."""

    def seconds_since(self, earlier: "ClockMark") -> float:
        """See `Mark`: on the host's clock."""
        return self._made - earlier._made


def _whole(legs: Sequence[LegTime]) -> float:
    return sum(each.work + each.sending for each in legs)
