"""The engine's side of the process border: takes messages in, lets the loop take its turns, sends what comes out.

Knows sockets, threads and the border's messages; what serves requests is a `Loop` that it is given. Three threads: the
main one works, one reads what the server sends (its end of the connection gone: so is this process, at once and
whatever it is doing), one sends a pulse every second, so that the server can tell a long step from a dead process.
"""

import contextlib
import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from strata.engine import wire
from strata.engine.messages import (
    Cancel,
    Crashed,
    FromEngine,
    Load,
    LoadFailed,
    Loading,
    ModelFacts,
    Pulse,
    Ready,
    Statistics,
    Stop,
    Submit,
    ToEngine,
)
from strata.engine.request import TokenRequest
from strata.errors import DeviceLostError, EngineError, StrataError
from strata.types import ProgressCallback

EXIT_DONE, EXIT_FAILED, EXIT_ALONE = 0, 1, 3
PULSE_SECONDS = 1.0
LONG_SECONDS = 1.0  # of a step, from which on a pulse tells what it waits for
STATISTICS_SECONDS = 1.0
PROGRESS_SECONDS = 0.1  # between two `Loading` of a stage


class Loop(Protocol):
    """What serves requests; `scheduler.scheduler.Scheduler` is one. An exception out of it ends the process."""

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        ...

    def submit(self, request_id: int, request: TokenRequest) -> None:
        """Take a request in."""
        ...

    def cancel(self, request_id: int, keep_tokens: int | None = None) -> None:
        """See `messages.Cancel`."""
        ...

    def turn(self) -> Sequence[FromEngine]:
        """One step and what came of it."""
        ...

    @property
    def waiting_for(self) -> str | None:
        """What the step under way waits for beside its device, in a sentence, if that is known. From any thread."""
        ...

    @property
    def arrivals(self) -> int:
        """Experts and rows that came from files so far: a step is not stuck as long as some do. From any thread.

        Raises DeviceLostError if what computes is known to be gone.
        """
        ...

    def statistics(self) -> Statistics:
        """The counters now."""
        ...


Loader = Callable[[Load, ProgressCallback], tuple[Loop, ModelFacts]]


def serve(connection: socket.socket, load: Loader) -> int:
    """Serve one parent until it says stop or is gone; returns the exit code. For the `main` of a process.

    The connection is closed by the end of the process and by nothing before: a close is a death to either side.
    """
    server = _Server(connection)
    server.start_threads()
    try:
        return _serve(server, load)
    except Exception as failure:
        if isinstance(failure, StrataError):
            server.send(Crashed(str(failure)))
        else:
            traceback.print_exc()
            server.send(Crashed(f"the engine's process failed: {type(failure).__name__}: {failure}"))
        return EXIT_FAILED


def _serve(server: "_Server", load: Loader) -> int:
    first = server.inbox.get()
    if not isinstance(first, Load):
        raise TypeError(f"the first message is {type(first).__name__}, not Load")
    begin = time.monotonic()
    try:
        loop, facts = load(first, _LoadingReport(server.send))
    except StrataError as failure:
        server.send(LoadFailed(str(failure), is_users_mistake=not isinstance(failure, EngineError)))
        return EXIT_FAILED
    server.send(Ready(facts, time.monotonic() - begin))
    _work(server, loop)
    return EXIT_DONE


def _work(server: "_Server", loop: Loop) -> None:
    """Turn after turn until Stop. Without work it waits for a message and takes no processor time."""
    server.loop = loop
    server.send(loop.statistics())
    told = time.monotonic()
    was_working = False
    while True:
        for message in server.messages(wait=not loop.has_work):
            if isinstance(message, Submit):
                loop.submit(message.request_id, message.request)
            elif isinstance(message, Cancel):
                loop.cancel(message.request_id, message.keep_tokens)
            elif isinstance(message, Stop):
                return
        if loop.has_work:
            server.step_began = time.monotonic()
            try:
                events = loop.turn()
            finally:
                server.step_began = None  # nobody asks any more what it waits for
            for event in events:
                server.send(event)
            was_working = True
        if time.monotonic() - told >= STATISTICS_SECONDS or (was_working and not loop.has_work):
            server.send(loop.statistics())
            told = time.monotonic()
            was_working = loop.has_work


class _Server:
    """The other end of the connection: what it sent, and the way back."""

    def __init__(self, connection: socket.socket) -> None:
        self.inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self.step_began: float | None = None  # on the steady clock; None: between steps
        self.loop: Loop | None = None  # once it is loaded
        self._connection = connection
        self._sending = threading.Lock()

    def start_threads(self) -> None:
        """The reader and the pulse, for the rest of the process."""
        for body in (self._read, self._beat):
            threading.Thread(target=body, name=body.__name__, daemon=True).start()

    def messages(self, *, wait: bool) -> list[ToEngine]:
        """What has come; waits for the first if that is wanted."""
        found = [self.inbox.get()] if wait else []
        while not self.inbox.empty():
            found.append(self.inbox.get())
        return found

    def send(self, message: FromEngine) -> None:
        """Send, waiting where the server does not read as fast. Ends the process if there is no server."""
        content = wire.encode(message)
        with self._sending:
            try:
                self._connection.sendall(content)
            except OSError:
                os._exit(EXIT_ALONE)

    def _read(self) -> None:
        decoder = wire.Decoder()
        while received := wire.receive_some(self._connection, wait=True):
            decoder.feed(received)
            while (message := decoder.next()) is not None:
                self.inbox.put(message)
        os._exit(EXIT_ALONE)

    def _beat(self) -> None:
        arrivals, arrived = 0, 0.0
        while True:
            now, so_far = time.monotonic(), self._arrivals()
            if so_far != arrivals:
                arrivals, arrived = so_far, now
            began = self.step_began
            seconds = None if began is None else now - max(began, arrived)
            self.send(Pulse(seconds, self._waiting_for() if seconds is not None and seconds > LONG_SECONDS else None))
            time.sleep(PULSE_SECONDS)

    def _arrivals(self) -> int:
        """What cannot be told does not end the pulse; a device that is lost ends the process, between steps as well."""
        try:
            return 0 if self.loop is None else self.loop.arrivals
        except DeviceLostError as loss:
            self.send(Crashed(str(loss)))
            os._exit(EXIT_FAILED)
        except EngineError:
            return 0

    def _waiting_for(self) -> str | None:
        """What cannot be told does not end the pulse."""
        with contextlib.suppress(EngineError):
            return None if self.loop is None else self.loop.waiting_for
        return None


class _LoadingReport:
    """A `ProgressCallback` that sends a stage's beginning, its end and now and then how far it has come."""

    def __init__(self, send: Callable[[FromEngine], None]) -> None:
        self._send = send
        self._last = Loading("", 0, 0)
        self._told = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now, progress = time.monotonic(), Loading(stage, done, total)
        is_due = stage != self._last.stage or done == total or now - self._told >= PROGRESS_SECONDS
        if is_due and progress != self._last:
            self._last, self._told = progress, now
            self._send(progress)
