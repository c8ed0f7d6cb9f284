"""Windows in flight that ask in a doorbell's mailboxes: when they may, until when, and what failed meanwhile.

Knows the service and its flags; knows nothing of what is asked for but its name.
"""

import weakref
from collections import deque
from collections.abc import Callable, Mapping
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
    unasked: str | None = None  # where no window waits: "none waits for the CPU"; None: nothing is said then


@dataclass
class _Flight:
    """A window in flight, and why it failed."""

    failure: EngineError | None = None


class Answers:
    """Whether a service still answers, and who is told of a failed answer: the windows in flight that use its mailbox.

    Not thread-safe, but for `stop` and `waiting_for`.
    """

    def __init__(self, service: Doorbell, words: AskingWords) -> None:
        self.service, self.words = service, words
        self._end = weakref.finalize(self, service.stop)  # also when the process ends: no kernel waits on
        self._flights: dict[int, deque[_Flight]] = {}  # of whoever uses a mailbox, by its number
        self._failures: dict[int, int] = {}  # of a mailbox, seen so far
        self.broken: DeviceLostError | None = None  # once nobody answers any more, as far as anybody has looked

    def tell(self, box: int, flights: deque[_Flight]) -> None:
        """From now on these hear of what fails in this mailbox."""
        self._flights[box], self._failures[box] = flights, 0

    def require(self) -> None:
        """Raises DeviceLostError if nobody answers any more."""
        if self.broken is not None:
            raise self.broken

    def note_failures(self) -> None:
        """All windows in flight are told what failed in their mailboxes since this was looked at last."""
        states = self._look()
        is_stopped = self.broken is None and any(state.done >= RAISED for state in states.values())
        for box, state in (self._look() if is_stopped else states).items():  # why was noted before any flag rose
            if state.failures > self._failures[box]:
                self._failures[box] = state.failures
                self._tell(self._flights[box], state)
        if is_stopped and self.broken is None:
            self.stop()

    def waiting_for(self, box: int) -> str | None:
        """The request in this mailbox that a window is waiting for, in words; None: for none."""
        state = self.service.state(box)
        if not state.is_waiting or state.done >= RAISED:
            return None
        return (
            f"a window waits for {self.words.what}: request {state.door}, {state.rows} rows, {state.entries} "
            f"places of {self.words.name_of(state.layer)}"
        )

    def stop(self) -> None:
        """Raise every flag, so that no window waits for an answer, and end the threads. From any thread, and twice."""
        self.broken = self.broken or DeviceLostError(f"{self.words.threads} were stopped")
        self.service.stop()

    def close(self) -> None:
        """Stop, and let go of the threads; nothing is in flight any more."""
        self.stop()
        self.service.close()

    def _look(self) -> dict[int, DoorbellState]:
        return {box: self.service.state(box) for box in self._flights}

    def _tell(self, flights: deque[_Flight], state: DoorbellState) -> None:
        what, cause = self.words.what, f"{self.words.name_of(state.failed_layer)}: {state.failure}"
        for flight in flights:  # whose request it was is not told; those behind it go on from its rows
            flight.failure = EngineError(f"{what} failed in {cause}")
        if state.is_late:
            self.broken = DeviceLostError(
                f"{what} gave no answer in {cause}; all that waited was let go, and the engine must be started again"
            )


class AskingWindows:
    """The windows of one group of slots, which run one after another in mailboxes of their own. Not thread-safe."""

    def __init__(
        self,
        answers: Answers,
        boxes: Mapping[int, tuple[Mailbox, PlanState]],
        before_launch: Callable[[bool], None] | None = None,
    ) -> None:
        """boxes: those of the group by their numbers in the service, and what its windows know of each on their device.

        before_launch: is called before each launch, with whether it is a read.
        """
        self._answers, self._boxes, self._before_launch = answers, boxes, before_launch
        self._flights: deque[_Flight] = deque()
        for box in boxes:
            answers.tell(box, self._flights)

    def __len__(self) -> int:
        return len(self._flights)

    def launched(self, *, is_read: bool = False) -> None:
        """A window, or a read, is about to be launched behind those in flight: from now on it may ask.

        Raises DeviceLostError if nobody answers any more.
        """
        self._answers.require()
        if self._before_launch is not None:
            self._before_launch(is_read)
        is_first = not self._flights
        self._flights.append(_Flight())
        if is_first:
            self._begin()

    def landed(self) -> None:
        """The next of the windows in flight has ended on the device; without one in flight nobody looks for requests.

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
            self._answers.note_failures()
        finally:
            self._flights.clear()
        self._end_boxes()

    def waiting_for(self) -> str | None:
        """The request that windows are waiting for, in words; None: for none. From any thread."""
        told = next((told for box in self._boxes if (told := self._answers.waiting_for(box)) is not None), None)
        unasked = self._answers.words.unasked
        if told is None and unasked is not None:
            return f"{len(self)} windows are in flight, and {unasked}"
        return told

    def _land(self, take_flight: Callable[[], _Flight]) -> None:
        if not self._flights:
            raise ValueError("no window is in flight, so none can have landed")
        self._answers.note_failures()
        flight = take_flight()
        if not self._flights:
            self._end_boxes()
        self._answers.require()
        if flight.failure is not None:
            raise flight.failure

    def _end_boxes(self) -> None:
        if self._answers.broken is None:
            for box in self._boxes:
                self._answers.service.end(box)

    def _begin(self) -> None:
        """Whatever ends this early, an interrupt too, leaves nothing in flight."""
        service = self._answers.service
        try:
            for box, (mailbox, state) in self._boxes.items():
                if int(mailbox.door) > REWIND_BEHIND:
                    service.rewind(box)
                    state.number.zero_()
                service.begin(box)
        except BaseException as reason:
            self._flights.clear()
            for box in self._boxes:
                if service.state(box).is_in_flight:
                    service.end(box)
            self._answers.note_failures()
            if isinstance(reason, EngineError) and self._answers.broken is not None:
                raise self._answers.broken from reason
            raise
