"""The engine's process as its parent sees it: started, spoken with, watched, killed. Knows no torch and no model.

`fileno` becomes readable when something has come, so an event loop calls `receive(0)` until it gives None; `trouble`
says whether the process is still alive and getting on, and costs nothing to ask. Nothing here blocks: what is sent is
written by a thread of its own. After `EngineLost` or `trouble`: `kill`, then `restart`.
"""

import contextlib
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from strata.engine import wire
from strata.engine.messages import Crashed, FromEngine, Load, Pulse, ToEngine

start_process = subprocess.Popen

MODULE = "strata.engine_process"
SILENT_SECONDS = 30.0  # its pulse comes every second
STARTING_SECONDS = 180.0  # until the first one: Python and torch are read from a disk, perhaps a slow one
STEP_SECONDS = 300.0  # a chunk of 512 rows at 2 rows a second is the slowest step that is still one


class EngineLost(Exception):
    """The engine's process has ended; the text says why as far as it is known."""


class EngineProcess:
    """One running process. Made by `start`; not for several threads, except `send`, `trouble` and `kill`."""

    def __init__(self, load: Load, environment: Mapping[str, str] | None, restarts: int) -> None:
        self.restarts = restarts  # how often a process was started in place of a lost one
        self._load = load
        self._environment = None if environment is None else dict(environment)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = start_process(
                [sys.executable, "-m", MODULE, str(theirs.fileno())],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C at a terminal is the server's matter
            )
        self._decoder = wire.Decoder()
        self._outgoing: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._heard: float | None = None
        self._started = time.monotonic()
        self._pulse = Pulse(None)

    @classmethod
    def start(cls, load: Load, environment: Mapping[str, str] | None = None, restarts: int = 0) -> "EngineProcess":
        """A process that loads the model; `Loading`.. and `Ready` or `LoadFailed` come from `receive`.

        environment: of the process, None: this one's own.
        """
        process = cls(load, environment, restarts)
        threading.Thread(target=process._write, name="to the engine", daemon=True).start()
        process.send(load)
        return process

    def restart(self) -> "EngineProcess":
        """Another process in place of this one, which is killed; requests under way are lost."""
        self.kill()
        return EngineProcess.start(self._load, self._environment, self.restarts + 1)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when a message has come or the process has ended."""
        return self._socket.fileno()

    def send(self, message: ToEngine) -> None:
        """Hand over a message; never blocks. What a lost process did not take is lost: `receive` tells."""
        self._outgoing.put(message)

    def receive(self, timeout: float | None = None) -> FromEngine | None:
        """The next message, waiting for it `timeout` seconds (None: for ever); None if none has come.

        Raises EngineLost once the process has ended or said that it fails, and everything before that was received, or
        if it is stuck.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._next_message()
            if message is not None:
                return message
            if self._take_bytes():
                continue
            trouble = self._silence()
            if trouble is not None:
                raise EngineLost(trouble)
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            if left <= 0:
                return None
            self._is_readable(left)

    def trouble(self) -> str | None:
        """Why the process cannot be waited for any longer, in one sentence; None if it is well.

        To be asked now and then: a process that says nothing makes no file readable.
        """
        if self._is_readable(0.0):
            return None  # it said something, or has ended: `receive` tells
        return self._silence()

    def _silence(self) -> str | None:
        """The same where nothing can be received."""
        silence = time.monotonic() - (self._heard or self._started)
        if silence > (SILENT_SECONDS if self._heard else STARTING_SECONDS):
            return f"the engine's process has given no sign of life for {silence:.0f} seconds"
        seconds, waiting_for = self._pulse.step_seconds, self._pulse.waiting_for
        if seconds is not None and seconds > STEP_SECONDS:
            why = "" if waiting_for is None else f": {waiting_for}"
            return f"a step of the engine has been running for {seconds:.0f} seconds{why}"
        return None

    def _is_readable(self, seconds: float) -> bool:
        return _is_ready(self._socket, select.POLLIN, seconds)

    def kill(self) -> None:
        """End the process at once and wait until it is gone; calling it again does nothing."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._outgoing.put(None)
        self._socket.close()

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code once the process has ended (after `Stop`, say); None if it has not within `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def _next_message(self) -> FromEngine | None:
        try:
            while (message := self._decoder.next()) is not None:
                if isinstance(message, Pulse):
                    self._pulse = message
                elif isinstance(message, Crashed):
                    raise EngineLost(message.error)
                else:
                    return message
        except wire.WireError as failure:
            raise EngineLost(f"the engine's process sent something else than messages: {failure}") from failure
        return None

    def _take_bytes(self) -> bool:
        """Take what has come, without waiting; whether there was something. Raises EngineLost at the end."""
        received = wire.receive_some(self._socket, wait=False)
        if received == b"":
            raise EngineLost(self._how_it_ended())
        if received is None:
            return False
        self._heard = time.monotonic()
        self._decoder.feed(received)
        return True

    def _how_it_ended(self) -> str:
        code = self.wait(5.0)
        if code is None:
            return "the engine's process has closed its connection"
        if code < 0:
            return f"the engine's process was ended by signal {-code}"
        return f"the engine's process has ended with code {code}"

    def _write(self) -> None:
        """Body of the writing thread."""
        while (message := self._outgoing.get()) is not None:
            try:
                self._send_whole(wire.encode(message))
            except (OSError, ValueError):  # ValueError: `kill` has closed the socket
                return

    def _send_whole(self, content: bytes) -> None:
        """Send, waiting for room. Not `sendall`: event loops such as libuv's make a descriptor that they watch
        non-blocking, and then a full buffer would be an error in the middle of a message."""
        left = memoryview(content)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                _is_ready(self._socket, select.POLLOUT, 1.0)


def _is_ready(connection: socket.socket, what: int, seconds: float) -> bool:
    """Whether a socket can be read or written within the time. Not `select`, which takes no descriptor above 1023."""
    poll = select.poll()
    poll.register(connection, what)
    return bool(poll.poll(1000 * seconds))
