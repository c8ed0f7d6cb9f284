"""Windows whose tokens are chosen where they are computed: the device has the next one before the host reads the last.

Knows what is in flight of one group of slots, in which order its windows are launched and landed, and what a landed one
makes of slots and replies; launches nothing itself. One window at most is in flight between two steps.

    step       1        2      3      a read comes
    launched   1, 2     3      4      -
    landed     1        2      3      4

A window in flight may hold replies that have ended or were cancelled since it was launched. The device itself leaves
alone what has ended; what it did for a cancelled one lies behind the tokens that were handed out, and the slot goes
back from there as from any token that nobody kept.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from strata.engine.failures import is_requests_failure
from strata.engine.reply import Reply
from strata.engine.window import ComputesWindows, WindowOutcome, WindowPart
from strata.errors import EngineError
from strata.sampling.draw import Draw
from strata.types import FinishReason

Outcome = WindowOutcome | Exception  # what its request ends with


@dataclass(frozen=True)
class Landed:
    """What a window chose for one slot, in order; as many rows became part of its state."""

    tokens: tuple[int, ...]  # none for a reply that had ended before the window began
    has_ended: bool  # with the last of them
    failure: EngineError | None = None  # what the slot's reply ends with: what was chosen means nothing


class WindowDevice(ComputesWindows, Protocol):
    """What computes a group's windows and chooses their tokens; `engine.device_windows.DeviceWindows` is one.

    Whatever launches is called inside of `road`.
    """

    def road(self) -> AbstractContextManager[None]:
        """Launches inside come behind those of this group so far, and behind all that have no group."""
        ...

    def join(self) -> None:
        """Launches that have no group come from now on behind those of this group so far."""
        ...

    def chooses(self, reply: Reply) -> bool:
        """Whether it chooses this reply's tokens, with the host's bits."""
        ...

    def begin(self, parts: Mapping[int, WindowPart]) -> None:
        """Learn where these replies stand. Nothing is in flight."""
        ...

    def launch(self, parts: Mapping[int, WindowPart]) -> Any:
        """Start a window behind those that were started before, and return at once with what `land` takes.

        Every reply goes on where the device has it; one that has ended there is left as it is.
        """
        ...

    def land(self, launched: Any) -> Mapping[int, Landed]:
        """Wait for a window; windows land in the order in which they were launched. Each slot's state moves on."""
        ...

    def forget(self) -> None:
        """Wait for all that was launched; nobody will land it."""
        ...


@dataclass(frozen=True)
class Flight:
    """A window that was launched and has not landed."""

    parts: Mapping[int, WindowPart]
    launched: Any
    marks: dict[int, Any] = field(default_factory=dict)  # by slot: its state behind this window


class WindowsAhead:
    """The windows of one group, one step ahead. Slots are known by their numbers."""

    def __init__(self, device: WindowDevice) -> None:
        self.device = device
        self._flight: Flight | None = None

    @property
    def in_flight(self) -> Collection[int]:
        """The slots of the window in flight; empty if there is none."""
        return () if self._flight is None else self._flight.parts.keys()

    def takes(self, parts: Collection[WindowPart]) -> bool:
        """Whether a window of these parts is for the device: it chooses the tokens of all of them."""
        return all(not part.drafts and self.device.chooses(part.reply) for part in parts)

    def is_in_flight_for(self, numbers: Collection[int]) -> bool:
        """Whether what is in flight is the next window of all these slots."""
        return self._flight is not None and self._flight.parts.keys() >= set(numbers)

    def advance(self, parts: Mapping[int, WindowPart], *, goes_on: bool) -> Callable[[], dict[int, Outcome]]:
        """Launch what is due; the result waits for one window's outcomes and is to be called before anything else here.

        They are of the window in flight, which is for these parts, or of a new one if there is none. goes_on: the next
        window is launched before this one has landed. A launch, or a copy of a state, that fails ends its replies, and
        what was in flight before it lands.
        """
        with self.device.road():
            if self._flight is None:
                failure = _failure_of(partial(self._begin, parts))
                if failure is not None:
                    return partial(_ended, parts, failure)
            flight, self._flight = self._flight, None
            assert flight is not None, "a launch that did not fail is in flight"
            following = {number: part for number, part in parts.items() if _has_room_behind_next(part.reply)}
            failure = _failure_of(partial(self._follow, flight, following if goes_on else {}))
        return lambda: self._landed(flight) | _ended(parts, failure)

    def land(self) -> dict[int, Outcome]:
        """The outcomes of what is in flight; empty if nothing is."""
        flight, self._flight = self._flight, None
        if flight is None:
            return {}
        with self.device.road():
            failure = _failure_of(partial(_take_marks, flight))
        return self._landed(flight) | _ended(flight.parts, failure)

    def forget(self) -> None:
        """Nobody will ask for what is in flight."""
        self._flight = None
        with self.device.road():
            self.device.forget()

    def _begin(self, parts: Mapping[int, WindowPart]) -> None:
        """Put a window in flight behind nothing."""
        self.device.begin(parts)
        self._flight = Flight(parts, self.device.launch(parts))

    def _follow(self, flight: Flight, following: Mapping[int, WindowPart]) -> None:
        """Put the next window in flight, unless it would be of nobody."""
        _take_marks(flight)
        if following:
            self._flight = Flight(following, self.device.launch(following))

    def _landed(self, flight: Flight) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        for number, landed in self.device.land(flight.launched).items():
            part = flight.parts[number]
            if part.reply.reason is not None:
                continue
            outcomes[number] = _outcome(part, landed)
            if number in flight.marks:
                part.slot.add_mark(flight.marks[number])
        return outcomes


def _failure_of(action: Callable[[], None]) -> Exception | None:
    """What ends replies, if it fails so; raises what ends more than them."""
    try:
        action()
    except Exception as failure:
        if not is_requests_failure(failure):
            raise
        return failure
    return None


def _ended(parts: Mapping[int, WindowPart], failure: Exception | None) -> dict[int, Outcome]:
    """Replies that still go on end with a failure, if there was one: a launch may have moved a part of their states."""
    if failure is None:
        return {}
    going_on = {number: part.reply for number, part in parts.items() if part.reply.reason is None}
    for reply in going_on.values():
        reply.reason = FinishReason.ERROR
    return dict.fromkeys(going_on, failure)


def _has_room_behind_next(reply: Reply) -> bool:
    """Whether the reply can go on behind a window that gives it one token."""
    return reply.length + 1 < reply.budget


def _take_marks(flight: Flight) -> None:
    """Copy, behind the flight and before anything else is launched, the states whose last mark will be far behind."""
    for number, part in flight.parts.items():
        if part.reply.reason is None and part.slot.is_mark_due(coming_rows=1):
            flight.marks[number] = part.slot.take_mark()


def _outcome(part: WindowPart, landed: Landed) -> Outcome:
    if landed.failure is not None:
        part.reply.reason = FinishReason.ERROR
        return landed.failure
    assert landed.tokens, "a reply that goes on gets a token from every window"
    draws, reason = part.reply.take([Draw(token_id) for token_id in landed.tokens])
    agrees = len(draws) == len(landed.tokens) and (reason is not None) == landed.has_ended
    assert agrees, f"the device ends a reply where the host does: {landed}, but {reason}"
    return WindowOutcome(draws, reason)
