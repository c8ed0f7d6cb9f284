"""Windows in flight that ask in a doorbell's mailboxes: when they may, until when, and what failed meanwhile.

Knows the service and its flags; knows nothing of what is asked for but its name.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.errors import DeviceLostError, EngineError
from strata.experts.doorbell import Doorbell, DoorbellState
from strata.kernels.expert_plan.tables import RAISED, Mailbox, PlanState

REWIND_BEHIND = 1 << 30  # requests: both flags start again long before they reach RAISED


@dataclass(frozen=True)
class AskingWords:
    """What messages say."""

    what: str  # is answered: "experts on the CPU"
    threads: str  # that answer: "the threads that compute experts on the CPU"
    name_of: Callable[[int], str]  # the number that a request begins with


@dataclass
class _Flight:
    """A window in flight, and why it failed."""

    failure: EngineError | None = None


class AskingWindows:
    """See the module. Not thread-safe, but for `stop`."""

    def __init__(
        self,
        service: Doorbell,
        boxes: Sequence[tuple[Mailbox, PlanState]],
        words: "AskingWords",
    ) -> None:
        """boxes: every mailbox of the service in its order, and what its windows know of it on their device."""
        self._service, self._boxes, self._words = service, tuple(boxes), words
        self._end = weakref.finalize(self, service.stop)  # also when the process ends: no kernel waits on
        self._flights: deque[_Flight] = deque()
        self._failures = [0] * len(boxes)  # seen so far
        self._broken: DeviceLostError | None = None

    def __len__(self) -> int:
        return len(self._flights)

    def require_answers(self) -> None:
        """Raises DeviceLostError if nobody answers any more."""
        if self._broken is not None:
            raise self._broken

    def launched(self) -> None:
        """A window is about to be launched behind those in flight: from now on it may ask.

        Raises DeviceLostError if nobody answers any more.
        """
        self.require_answers()
        is_first = not self._flights
        self._flights.append(_Flight())
        if is_first:
            self._begin()

    def landed(self) -> None:
        """The next of the windows in flight has ended on the device; without one in flight the threads sleep.

        Raises EngineError, with the cause, if an answer failed while the window was in flight: its rows mean nothing.
        DeviceLostError: there was no answer, and there never will be one again. ValueError: none is in flight.
        """
        self._land(self._flights.popleft)

    def cut_off(self) -> None:
        """The window that was launched last was not launched whole, and all in flight have ended on the device.

        Those in front of it land before anything is launched again. What it asked and has no answer to is answered
        before they have landed, or never. Raises what `landed` raises.
        """
        self._land(self._flights.pop)

    def forget(self) -> None:
        """All windows in flight have ended on the device, and nobody asks what came of them.

        Their failures are no later window's; that nobody answers any more is told by the next `launched`. Raises
        EngineError if the service cannot be spoken with; nothing is in flight even then.
        """
        if not self._flights:
            return
        try:
            self._note_failures()
        finally:
            self._flights.clear()
        self._end_boxes()

    def waiting_for(self) -> str | None:
        """The request that windows are waiting for, in words; None: for none."""
        for state in self._states():
            if state.is_waiting and state.done < RAISED:
                return (
                    f"a window waits for {self._words.what}: request {state.door}, {state.rows} rows, {state.entries} "
                    f"places of {self._words.name_of(state.layer)}"
                )
        return None

    def stop(self) -> None:
        """Raise every flag, so that no window waits for an answer, and end the threads. From any thread, and twice."""
        self._broken = self._broken or DeviceLostError(f"{self._words.threads} were stopped")
        self._service.stop()

    def close(self) -> None:
        """Stop, and let go of the threads; nothing is in flight any more."""
        self.stop()
        self._service.close()

    def _states(self) -> list[DoorbellState]:
        return [self._service.state(box) for box in range(len(self._boxes))]

    def _land(self, take_flight: Callable[[], _Flight]) -> None:
        if not self._flights:
            raise ValueError("no window is in flight, so none can have landed")
        self._note_failures()
        flight = take_flight()
        if not self._flights:
            self._end_boxes()
        self.require_answers()
        if flight.failure is not None:
            raise flight.failure

    def _end_boxes(self) -> None:
        if self._broken is None:
            for box in range(len(self._boxes)):
                self._service.end(box)

    def _note_failures(self) -> None:
        """All windows in flight are told what failed since this was looked at last."""
        for box, state in enumerate(self._states()):
            if state.failures > self._failures[box]:
                self._failures[box] = state.failures
                self._tell(state)
            if state.done >= RAISED and self._broken is None:
                self.stop()

    def _tell(self, state: DoorbellState) -> None:
        what, cause = self._words.what, f"{self._words.name_of(state.failed_layer)}: {state.failure}"
        for flight in self._flights:  # whose request it was is not told; those behind it go on from its rows
            flight.failure = EngineError(f"{what} failed in {cause}")
        if state.is_late:
            self._broken = DeviceLostError(
                f"{what} gave no answer in {cause}; all that waited was let go, and the engine must be started again"
            )

    def _begin(self) -> None:
        """Whatever ends this early, an interrupt too, leaves nothing in flight."""
        try:
            for box, (mailbox, state) in enumerate(self._boxes):
                if int(mailbox.door) > REWIND_BEHIND:
                    self._service.rewind(box)
                    state.number.zero_()
                self._service.begin(box)
        except BaseException as reason:
            self._flights.clear()
            for box, found in enumerate(self._states()):
                if found.is_in_flight:
                    self._service.end(box)
            self._note_failures()
            if isinstance(reason, EngineError) and self._broken is not None:
                raise self._broken from reason
            raise
