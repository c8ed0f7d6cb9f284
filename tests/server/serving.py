"""`strata serve` as a process of its own, as people run it, and what a test asks of it."""

import contextlib
import http.client
import json
import os
import re
import signal
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

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strata", "serve", *arguments],
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
        self.until(lambda: bool(self.out))
        found = re.search(r"http://[^ ]*:(\d+)", self.out[0])
        assert found, self.out
        return int(found.group(1))

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
