"""A server over a fake engine in a thread of this process, and a client of bare bytes to talk to it."""

import asyncio
import contextlib
import dataclasses
import functools
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from strata.server.app import create_app
from strata.server.condition import RestartPolicy
from strata.server.context_limit import ContextLimit
from strata.server.parts import Parts
from strata.server.run import listen, make_parts
from strata.server.security import rules_of
from strata.server.text_side import TextSide
from strata.settings import ServerSettings, Settings
from tests.server.fake_engine import FakeEngine, Script, facts

QUICK = RestartPolicy(first_seconds=0.05, most_seconds=0.2)


@functools.cache
def text_side(context: int, tool_dialect: str) -> TextSide:
    """What servers that are alike share: a tokenizer and a template's child take longer than most tests.

    That a server makes its own is seen where one is a process (test_serve) and where a test asks for it.
    """
    model = facts(context=context)
    return TextSide(model.tokenizer, tool_dialect, ContextLimit(model.context, model.trained_context))


class Running:
    """A server that is up."""

    def __init__(self, script: Script, settings: ServerSettings, text: TextSide | None = None) -> None:
        self.script = script
        self._shared_text = text
        self.log: list[dict[str, Any]] = []
        self.parts: Parts
        self.loop: asyncio.AbstractEventLoop
        self._settings = settings
        self._sockets = listen("127.0.0.1", 0)
        self.port: int = self._sockets[0].getsockname()[1]
        self._stop = threading.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._up.wait(20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> FakeEngine:
        return self.script.engine

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.parts = make_parts(Settings(server=self._settings), self.script.launch, QUICK)
        self.parts.text = self._shared_text
        self.parts.addresses = (self.url,)
        app = create_app(self.parts, rules_of(self._settings), lambda line: self.log.append(json.loads(line)))
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        serving = asyncio.create_task(server.serve(sockets=self._sockets))
        self.parts.service.start()
        self._up.set()
        while not self._stop.is_set():
            await asyncio.sleep(0.01)
        await self.parts.service.close()
        server.should_exit = True
        await serving
        if self.parts.text is not None and self._shared_text is None:
            self.parts.text.close()

    def call(self, act: Callable[[], Any]) -> None:
        """Do something in the server's thread."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (act(), done.set()))
        assert done.wait(10)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)
        for listening in self._sockets:
            listening.close()
        assert not self._thread.is_alive(), "the server did not end"

    def until(self, is_so: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.005)

    def until_ready(self) -> None:
        self.until(lambda: self.parts.service.condition.is_ready)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body, as JSON where it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            heads = {"content-type": "application/json"} if body is not None else {}
            connection.request(method, path, content, heads | (headers or {}))
            answer = connection.getresponse()
            raw = answer.read()
            heads = {name.lower(): value for name, value in answer.getheaders()}
            is_json = heads.get("content-type", "").startswith("application/json")
            return answer.status, heads, json.loads(raw) if is_json else raw.decode()
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        """The body of an answer that must be 200."""
        status, _, answer = self.request("POST", path, body, headers)
        assert status == 200, answer
        return answer

    def events(self, path: str, body: Any) -> list[tuple[str | None, Any]]:
        """The events of a whole stream: names (or None) and data, parsed; pings as ("", None)."""
        status, _, text = self.request("POST", path, body)
        assert status == 200, text
        return list(parse_events(text))

    @contextlib.contextmanager
    def open_stream(self, path: str, body: Any, method: str = "POST") -> Iterator[socket.socket]:
        """A socket on which a request was sent; closing it is leaving."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            content = json.dumps(body).encode() if body is not None else b""
            head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            yield connection


def parse_events(text: str) -> Iterator[tuple[str | None, Any]]:
    for block in text.split("\n\n"):
        if not block.strip():
            continue
        if block.startswith(":"):
            yield "", None
            continue
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        data = lines["data"]
        yield lines.get("event"), data if data == "[DONE]" else json.loads(data)


@contextlib.contextmanager
def running(
    script: Script | None = None, wait: bool = True, shares_text: bool = True, **settings: Any
) -> Iterator[Running]:
    """A server over a fake engine."""
    script = script or Script()
    of_server = dataclasses.replace(ServerSettings(), port=0, **settings)
    server = Running(script, of_server, text_side(script.context, of_server.tool_dialect) if shares_text else None)
    try:
        if wait:
            server.until_ready()
        yield server
    finally:
        server.stop()
