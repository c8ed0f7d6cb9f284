"""`strata serve` as a process of its own, as people run it, and what a test asks of it."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Serving:
    """A server process; the address is known once it listens."""

    program: tuple[str, ...] = ("strata", "serve")  # a module and its arguments

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", *self.program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ, PYTHONPATH=paths) | (environment or {}),
        )
        self.out: list[str] = []
        self.err: list[str] = []
        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            threading.Thread(target=lambda s=stream, n=lines: n.extend(s), daemon=True).start()

    @property
    def port(self) -> int:
        address = re.compile(r"http://[^ ]*:(\d+)")
        self.until(lambda: any(map(address.search, self.out)))
        return int(next(found.group(1) for line in self.out if (found := address.search(line))))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def until(self, is_so: Callable[[], bool], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert self.process.poll() is None or is_so(), f"the server ended: {self.err}"
            assert time.monotonic() < deadline, f"waited in vain: {self.out} {self.err}"
            time.sleep(0.01)

    def until_ready(self) -> None:
        self.until(lambda: self.ask("GET", "/health")[0] == 200)

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 60.0) -> tuple[int, Any]:
        """Status and body, parsed where it is JSON; status 0: nobody answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json"})
            answer = connection.getresponse()
            raw = answer.read().decode()
            is_json = (answer.getheader("content-type") or "").startswith("application/json")
            return answer.status, json.loads(raw) if is_json else raw
        except (ConnectionError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def engine_pid(self) -> int | None:
        """Of the engine's process, a child of the server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        children += [pid for task in tasks for pid in (task / "children").read_text().split()]
        for pid in dict.fromkeys(children):
            with contextlib.suppress(OSError):
                if "strata.engine_process" in Path(f"/proc/{pid}/cmdline").read_text():
                    return int(pid)
        return None

    def kill_engine(self) -> None:
        pid = self.engine_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def rss_bytes(self) -> int:
        """Memory of the server's process, the engine's not included."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 60.0) -> int:
        return self.process.wait(seconds)


@contextlib.contextmanager
def serving(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[Serving]:
    server = Serving("--port", "0", *arguments, environment=environment)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


class Streaming(threading.Thread):
    """A client that reads one stream to its end."""

    def __init__(self, server: Serving, body: Any, path: str = "/v1/completions") -> None:
        super().__init__(daemon=True)
        self.server, self.body, self.path = server, body, path
        self.received = ""
        self.has_begun = threading.Event()
        self.start()

    def run(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as connection:
            content = json.dumps(self.body).encode()
            head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
            while piece := connection.recv(1 << 16):
                self.received += piece.decode("utf-8", "replace")
                if "data: " in self.received:
                    self.has_begun.set()
        self.has_begun.set()
