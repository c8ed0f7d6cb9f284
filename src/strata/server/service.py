"""The server's end of the engine's process: hands requests over, spreads its answers, starts it again when it dies.

Knows requests by number and the process as an `EngineLink`; no text, no HTTP beyond what a refusal says.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from strata.engine.client import EngineLost
from strata.engine.messages import (
    Cancel,
    Drawn,
    Ended,
    FromEngine,
    LoadFailed,
    Loading,
    ModelFacts,
    PromptRead,
    ReadProgress,
    Ready,
    Statistics,
    Stop,
    Submit,
    ToEngine,
)
from strata.engine.request import TokenRequest
from strata.errors import StrataError
from strata.server.condition import DRAINING, LOADING, READY, STOPPED, Condition, Phase, RestartPolicy
from strata.server.errors import ApiError

RequestEvent = ReadProgress | PromptRead | Drawn | Ended
DEFAULT_POLICY = RestartPolicy()
WATCH_SECONDS = 0.5  # between two looks at the clock
CLOSE_SECONDS = 5.0  # that a process has to end by itself
_log = logging.getLogger("strata.server")


class EngineLink(Protocol):
    """One engine process, from its start to its end: `engine.client.EngineProcess` is one."""

    def fileno(self) -> int:
        """Readable when a message has come or the process has ended."""

    @property
    def pid(self) -> int:
        """Of the process."""

    def send(self, message: ToEngine) -> None:
        """Hand a message over; never blocks."""

    def receive(self, timeout: float | None) -> FromEngine | None:
        """The next message; None if none has come within the time. Raises EngineLost when the process has ended."""

    def trouble(self) -> str | None:
        """Why the process cannot be waited for any longer; None if it is well."""

    def wait(self, timeout: float | None) -> int | None:
        """The exit code; None if the process has not ended within the time."""

    def kill(self) -> None:
        """End the process at once."""


class Submission:
    """Requests that were handed over together: their events, by the request's place among them."""

    def __init__(self, service: "EngineService", numbers: Sequence[int]) -> None:
        self._service = service
        self._numbers = tuple(numbers)  # by choice
        self._running = {number: choice for choice, number in enumerate(numbers)}
        self._silenced: set[int] = set()  # nothing more is wanted of these
        self._events: asyncio.Queue[tuple[int, RequestEvent] | ApiError] = asyncio.Queue()

    async def next(self) -> tuple[int, RequestEvent] | None:
        """The next event; None when every request has ended. Raises ApiError if the engine was lost."""
        while self._running or not self._events.empty():
            event = await self._events.get()
            if isinstance(event, ApiError):
                raise event
            if event[0] not in self._silenced:
                return event
        return None

    def end(self, choice: int, keep_tokens: int | None = None) -> None:
        """Ask no more of one request; nothing more is heard of it.

        keep_tokens: tokens of the reply that were handed out. The engine hears of them also where the request has
        ended by itself in the meantime: the kept conversation goes no further.
        """
        number = self._numbers[choice]
        self._silenced.add(choice)
        if self._running.pop(number, None) is not None:
            self._service.cancel(number, keep_tokens)
        elif keep_tokens is not None:
            self._service.cut(number, keep_tokens)

    def close(self) -> None:
        """End what still runs."""
        for choice in list(self._running.values()):
            self.end(choice)

    def take(self, event: RequestEvent) -> None:
        """For the service: an event of one of the requests."""
        choice = self._running.get(event.request_id)
        if choice is not None:
            if isinstance(event, Ended):
                del self._running[event.request_id]
            self._events.put_nowait((choice, event))

    def lose(self, reason: ApiError) -> None:
        """For the service: the engine will not answer any more."""
        self._running.clear()
        self._events.put_nowait(reason)


class EngineService:
    """Requests in, events out, whatever happens to the engine's process."""

    def __init__(
        self,
        launch: Callable[[], EngineLink],
        prepare: Callable[[ModelFacts], None],
        max_waiting: int = 512,
        policy: RestartPolicy = DEFAULT_POLICY,
    ) -> None:
        self.condition = LOADING
        self.facts: ModelFacts | None = None
        self.statistics: Statistics | None = None
        self.restarts = 0
        self.last_failure: str | None = None
        self.failure_is_users_mistake = False
        self.reading: dict[int, ReadProgress] = {}  # prompts under way, by the request's number
        self.changed = asyncio.Event()  # set, and replaced, when condition or statistics change
        self._launch = launch
        self._prepare = prepare  # is run in a thread before the first request
        self._max_waiting = max_waiting
        self._policy = policy
        self._numbers = itertools.count(1)
        self._running: dict[int, Submission] = {}
        self._link: EngineLink | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._is_loaded = False
        self._preparing: asyncio.Task[None] | None = None
        self._load_error: str | None = None
        self._load_failures = 0
        self._deaths = 0

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    @property
    def engine_pid(self) -> int | None:
        """Of the engine's process; None between two of them."""
        return self._link.pid if self._link is not None else None

    def start(self) -> None:
        """Start the engine's process and keep it running until `close`."""
        self._supervisor = asyncio.create_task(self._supervise())

    def submit(self, requests: Sequence[TokenRequest]) -> Submission:
        """Hand requests over together, all or none. ApiError 503 if the engine is not ready, 429 if too many wait."""
        if not self.condition.is_ready or self._link is None or self.facts is None:
            raise self.condition.refusal()
        most = self.facts.slots + self._max_waiting
        if self.running + len(requests) > most:
            raise ApiError(
                429,
                f"{self.running} requests are running or waiting; at most {most} may",
                code="queue_full",
                retry_after=5,
            )
        numbers = [next(self._numbers) for _ in requests]
        submission = Submission(self, numbers)
        for number, request in zip(numbers, requests, strict=True):
            self._running[number] = submission
            self._link.send(Submit(number, request))
        return submission

    def cancel(self, number: int, keep_tokens: int | None = None) -> None:
        """End a request; for `Submission`."""
        self.reading.pop(number, None)
        if self._running.pop(number, None) is not None and self._link is not None:
            self._link.send(Cancel(number, keep_tokens))

    def cut(self, number: int, keep_tokens: int) -> None:
        """The conversation of a request that has ended goes no further than this; for `Submission`."""
        if self._link is not None:
            self._link.send(Cancel(number, keep_tokens))

    async def drain(self, seconds: float, abort: asyncio.Event) -> None:
        """Take nothing new and wait until everything has ended, at most so long and not beyond `abort`."""
        self._become(DRAINING)
        deadline = time.monotonic() + seconds
        while self._running and time.monotonic() < deadline and not abort.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(abort.wait(), 0.05)
        self._lose_all(ApiError(503, "the server was stopped before this reply was complete", code="stopped"))

    async def close(self) -> None:
        """End the engine's process."""
        self._become(STOPPED)
        self._lose_all(STOPPED.refusal())
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor

    async def _supervise(self) -> None:
        while True:
            how, was_ready = await self._live()
            self._note_end(how, was_ready)
            if self.condition.phase in (Phase.FAILED, Phase.STOPPED, Phase.DRAINING):
                return
            wait = self._policy.wait_seconds(self._load_failures, self._deaths)
            if wait is None:
                self._become(Condition(Phase.FAILED, f"the engine cannot be kept running: {self.last_failure}"))
                _log.error(self.condition.sentence)
                return
            await asyncio.sleep(wait)
            self.restarts += 1

    async def _live(self) -> tuple[str, bool]:
        """One process from its start to its end: how it ended, and whether it had been ready."""
        try:
            link = self._launch()
        except OSError as failure:
            return f"its process cannot be started: {failure}", False
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        self._link = link
        self._is_loaded = False
        loop.add_reader(link.fileno(), self._drain_link, link, ended)
        try:
            while not ended.done():
                await asyncio.wait((ended,), timeout=WATCH_SECONDS)
                if not ended.done() and (trouble := link.trouble()) is not None:
                    ended.set_result(trouble)
            return ended.result(), self._is_loaded
        finally:
            self._link = None
            loop.remove_reader(link.fileno())
            is_asked = self._is_loaded and not ended.done()  # one that loads hears nothing, and has nothing to end
            await asyncio.shield(asyncio.to_thread(_end, link, is_asked_to_stop=is_asked))

    def _drain_link(self, link: EngineLink, ended: "asyncio.Future[str]") -> None:
        """The process has said something, or has ended."""
        try:
            while (message := link.receive(0)) is not None:
                self._take(message)
        except EngineLost as loss:
            asyncio.get_running_loop().remove_reader(link.fileno())
            if not ended.done():
                ended.set_result(str(loss))

    def _note_end(self, how: str, was_ready: bool) -> None:
        """The process has ended: tell those who wait, and count."""
        self._deaths += 1
        self._load_failures = 0 if was_ready else self._load_failures + 1
        if self.condition.phase is Phase.FAILED:  # it said why
            self._lose_all(self.condition.refusal())
            return
        self.last_failure = self._load_error or how
        self._load_error = None
        lost = Condition(Phase.RESTARTING, f"the engine is being started again: {self.last_failure}")
        self._become(lost)
        _log.warning(lost.sentence)
        sentence = f"this reply was lost: {self.last_failure}; the engine is being started again: ask again"
        self._lose_all(ApiError(503, sentence, code=lost.phase.value, retry_after=lost.retry_after))

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, ReadProgress | PromptRead | Drawn | Ended):
            submission = self._running.get(message.request_id)
            if submission is not None:
                if isinstance(message, Ended):
                    del self._running[message.request_id]
                    self._deaths = 0
                submission.take(message)
            self._note_reading(message)
        elif isinstance(message, Statistics):
            self.statistics = message
            self._tell_change()
        elif isinstance(message, Ready):
            self._is_loaded = True
            self._preparing = asyncio.create_task(self._get_ready(message.facts))
        elif isinstance(message, Loading):
            self._note_loading(message)
        elif isinstance(message, LoadFailed):
            self._load_error = self.last_failure = message.error
            self.failure_is_users_mistake = message.is_users_mistake
            if message.is_users_mistake:
                self._become(Condition(Phase.FAILED, message.error))

    def _note_reading(self, message: RequestEvent) -> None:
        if isinstance(message, ReadProgress) and message.done < message.total and message.request_id in self._running:
            self.reading[message.request_id] = message
            self._tell_change()
        else:
            self.reading.pop(message.request_id, None)

    async def _get_ready(self, facts: ModelFacts) -> None:
        link = self._link
        try:
            await asyncio.to_thread(self._prepare, facts)
        except StrataError as failure:
            self.last_failure = str(failure)
            self.failure_is_users_mistake = True
            self._become(Condition(Phase.FAILED, str(failure)))
            return
        if self._link is link and self._link is not None:
            self.facts = facts
            self._become(READY)

    def _note_loading(self, message: Loading) -> None:
        now = self.condition
        if now.phase in (Phase.LOADING, Phase.RESTARTING):
            self._become(Condition(now.phase, now.sentence, message.stage, message.done, message.total))

    def _become(self, condition: Condition) -> None:
        if self.condition.phase not in (Phase.STOPPED, Phase.FAILED) or condition.phase is Phase.STOPPED:
            is_leaving = self.condition.phase is Phase.DRAINING and condition.phase is not Phase.STOPPED
            self.condition = self.condition if is_leaving else condition
            self._tell_change()

    def _tell_change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _lose_all(self, reason: ApiError) -> None:
        lost = set(self._running.values())
        for number in list(self._running):
            self.cancel(number)
        for submission in lost:
            submission.lose(reason)


def _end(link: EngineLink, is_asked_to_stop: bool) -> None:
    """Let a process end by itself if it was asked to, by force otherwise."""
    if is_asked_to_stop:
        link.send(Stop())
        link.wait(CLOSE_SECONDS)
    link.kill()
