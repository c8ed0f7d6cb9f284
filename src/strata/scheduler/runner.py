"""The scheduler inside the caller's own process: whoever waits for an event of a request runs the turns until it comes.

Knows callers, each in a thread of its own perhaps, and lets one of them at a time drive; no thread is started here, so
nothing runs while nobody waits, and Ctrl-C stops a turn where it is. What was under way then is lost, for every caller:
a step that was not finished leaves nothing that could be trusted.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator

from strata.engine.control import RunControl
from strata.engine.messages import Drawn, Ended, FromEngine, PromptRead, ReadProgress
from strata.engine.request import RunEnded, TokenRequest, TokensDrawn
from strata.errors import StrataError
from strata.scheduler.scheduler import Scheduler
from strata.types import FinishReason, Usage

Event = ReadProgress | PromptRead | Drawn | Ended
INTERRUPTED = "the engine was interrupted while it ran"


class RequestRunner:
    """Runs the requests of one process. `new_scheduler` makes an empty one over empty slots."""

    def __init__(self, new_scheduler: Callable[[], Scheduler]) -> None:
        self._new_scheduler = new_scheduler
        self._scheduler = new_scheduler()
        self._turn = threading.Lock()
        self._numbers = itertools.count(1)
        self._events: dict[int, deque[Event]] = {}
        self._controls: dict[int, RunControl] = {}
        self._left: deque[tuple[int, int | None]] = deque()  # requests whose callers are gone, and what they keep

    def run(self, request: TokenRequest, control: RunControl) -> Generator[TokensDrawn | RunEnded, None, None]:
        """Run a checked request. The last event is always RunEnded; a failure of the engine is its reason.

        Nothing happens before the first `next`. A caller that closes the generator has left: the slot is free when
        another request is run.
        """
        number = next(self._numbers)
        events: deque[Event] = deque()
        with self._turn:
            self._events[number], self._controls[number] = events, control
            self._scheduler.submit(number, request)
        try:
            while True:
                while not events:
                    self._advance(events)
                event = events.popleft()
                if isinstance(event, ReadProgress):
                    control.report(event.done, event.total)
                elif isinstance(event, Drawn):
                    yield TokensDrawn(event.draws, event.usage)
                elif isinstance(event, Ended):
                    yield RunEnded(event.reason, event.usage, event.error)
                    return
        finally:
            # No lock is taken here: a generator may be closed anywhere, even inside a turn.
            self._left.append((number, control.kept_tokens))

    def _advance(self, events: deque[Event]) -> None:
        """Run turns until an event has come for the caller, who may find it brought by another one's turns."""
        with self._turn:
            if events:
                return
            try:
                self._take_in()
                for event in self._scheduler.turn():
                    self._hand_out(event)
            except BaseException as failure:
                self._start_again(str(failure) if isinstance(failure, StrataError) else INTERRUPTED)
                raise

    def _take_in(self) -> None:
        while self._left:
            number, kept = self._left.popleft()
            if self._controls.pop(number, None) is not None:
                del self._events[number]
                self._scheduler.cancel(number, kept)
        for number, control in self._controls.items():
            if control.is_cancelled:
                self._scheduler.cancel(number)

    def _hand_out(self, event: FromEngine) -> None:
        assert isinstance(event, Event), "the scheduler tells of requests"
        if event.request_id in self._events:
            self._events[event.request_id].append(event)

    def _start_again(self, reason: str) -> None:
        self._scheduler = self._new_scheduler()
        for number, events in self._events.items():
            usage = Usage(0, 0, 0, 0, 0, 0.0, 0.0)
            events.append(Ended(number, FinishReason.ERROR, usage, reason))
