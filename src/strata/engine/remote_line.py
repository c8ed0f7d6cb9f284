"""A line between two processes of one model: a TCP connection that carries messages in order. Knows no stage.

The processes that torchrun starts find each other by its store: the leader, rank 0, writes where it listens and a word
that only they know; the others come and say it. A leader that is started again is another *life* and listens anew.
Hosts that are gone without a word are found out by the system within half a minute.
"""

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strata.engine.remote_wire import RemoteDecoder, RemoteWireError, encode

JOIN_SECONDS = 180.0  # that a leader waits for all others, and they for a leader: Python and torch are read from a disk
RETRY_SECONDS = 0.2  # between two looks at the store
_RECEIVE_BYTES = 1 << 18
_LIFE, _WORD_BYTES = "strata/life", 16
# Seconds of silence on a connection after which the system asks, between two questions, and how many; bytes that nobody
# takes end it after as long (in ms).
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
_UNTAKEN_MS = 25_000


class LineLost(Exception):
    """The process at the other end is gone, or is not what it should be; the text says which."""


class Store(Protocol):
    """What torchrun's ranks share: `torch.distributed.Store`."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number, which is 0 at first; returns it."""
        ...

    def set(self, key: str, value: str, /) -> None:
        """Write a text."""
        ...

    def get(self, key: str, /) -> bytes:
        """Read it, waiting until it is there."""
        ...


@dataclass(frozen=True)
class Hello:
    """What a rank says first."""

    rank: int
    word: str


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket, known: Sequence[type]) -> None:
        """known: the classes of messages that come from the other end."""
        self._socket = connection
        self._decoder = RemoteDecoder(known)

    def send(self, message: Any) -> None:
        """Hand a message over; waits where the other end does not take as fast. Raises LineLost."""
        try:
            self._socket.sendall(encode(message))
        except OSError as failure:
            raise LineLost(f"its connection is gone ({failure.strerror or failure})") from failure

    def receive(self) -> Any:
        """The next message, waiting for it. Raises LineLost."""
        while True:
            try:
                message = self._decoder.next()
                if message is not None:
                    return message
                received = self._socket.recv(_RECEIVE_BYTES)
            except RemoteWireError as failure:
                raise LineLost(f"it sent something else than messages: {failure}") from failure
            except OSError as failure:
                raise LineLost(f"its connection is gone ({failure.strerror or failure})") from failure
            if not received:
                raise LineLost("it has ended")
            self._decoder.feed(received)

    def is_lost(self, seconds: float) -> bool:
        """Whether the other end is gone, or goes within so many seconds. What came from it still can be received."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    return True
            except BlockingIOError:
                pass
            except OSError:
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        """The other end finds this one gone; a thread that waits here in `receive` finds the line lost."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def open_lines(
    store: Store, host: str, ranks: int, known: Sequence[type], seconds: float = JOIN_SECONDS
) -> tuple[int, list[Line]]:
    """For the leader: begin a life, and wait for ranks 1.. to come. Returns its number and their lines, by rank.

    host: this one's address as the others know it. Raises LineLost if it is not, or if not all of them come in time.
    """
    life = store.add(_LIFE, 1)
    word, deadline = secrets.token_hex(_WORD_BYTES), time.monotonic() + seconds
    lines: dict[int, Line] = {}
    with _listening(host, ranks) as listening:
        store.set(f"strata/{life}", json.dumps([host, listening.getsockname()[1], word]))
        while len(lines) < ranks - 1:
            listening.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection = listening.accept()[0]
            except TimeoutError:
                missing = [str(rank) for rank in range(1, ranks) if rank not in lines]
                raise LineLost(f"rank {', '.join(missing)} of {ranks} did not come within {seconds:.0f} s") from None
            rank, line = _greeted(connection, word, known)
            if line is not None and 0 < rank < ranks:
                lines[rank] = line
    return life, [lines[rank] for rank in sorted(lines)]


def _listening(host: str, backlog: int) -> socket.socket:
    """At any free port. Raises LineLost where the host is none of this machine's names."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family, backlog=backlog)
    except OSError as failure:
        raise LineLost(
            f"rank 0 cannot listen at {host} ({failure.strerror or failure}): torchrun's MASTER_ADDR must be an "
            "address of rank 0's host"
        ) from failure


def find_leader(store: Store, rank: int, known: Sequence[type], seconds: float = JOIN_SECONDS) -> tuple[int, Line]:
    """For another rank: the number of the leader's life, and the line to it. Raises LineLost if none comes in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        life = store.add(_LIFE, 0)
        if life:
            host, port, word = json.loads(store.get(f"strata/{life}"))
            with contextlib.suppress(OSError, LineLost):  # of a life that has ended: the next one has another port
                line = Line(_tuned(socket.create_connection((host, port), timeout=5.0)), known)
                line.send(Hello(rank, word))
                return life, line
        time.sleep(RETRY_SECONDS)
    raise LineLost(f"rank 0 did not begin within {seconds:.0f} s")


def _greeted(connection: socket.socket, word: str, known: Sequence[type]) -> tuple[int, Line | None]:
    """Who came, if it is one of ours; the connection of anybody else is closed."""
    line = Line(_tuned(connection), (*known, Hello))
    connection.settimeout(5.0)
    with contextlib.suppress(LineLost):
        hello = line.receive()
        if isinstance(hello, Hello) and secrets.compare_digest(hello.word, word):
            connection.settimeout(None)
            return hello.rank, line
    line.close()
    return 0, None


def _tuned(connection: socket.socket) -> socket.socket:
    """A connection whose small messages leave at once, and whose silent end is found out."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN_MS)
    return connection
