"""A server from its first socket to its last: listen, load, serve, drain, end.

Knows signals, sockets and uvicorn; what is served is `app`'s matter, what is printed the caller's.
"""

import asyncio
import contextlib
import gc
import json
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from strata.engine.client import EngineProcess
from strata.engine.messages import Load, ModelFacts
from strata.errors import EngineError, ModelError, SettingsError
from strata.server.app import create_app
from strata.server.condition import Phase, RestartPolicy
from strata.server.context_limit import ContextLimit
from strata.server.metrics import Metrics
from strata.server.parts import Parts
from strata.server.security import rules_of
from strata.server.service import DEFAULT_POLICY, EngineLink, EngineService
from strata.server.text_side import TextSide
from strata.settings import Settings

CONNECTIONS_SECONDS = 3  # that open connections have to close once every reply has ended
KEEP_ALIVE_SECONDS = 75  # of an idle connection: longer than clients keep theirs, which else write into a closed one
_BACKLOG = 2048


def make_parts(settings: Settings, launch: Callable[[], EngineLink], policy: RestartPolicy = DEFAULT_POLICY) -> Parts:
    """The service and what the routes share, over engines that `launch` starts."""

    def prepare(facts: ModelFacts) -> None:
        if parts.text is None or parts.text.files != facts.tokenizer:
            before, parts.text = parts.text, _text_side(facts, settings)
            if before is not None:
                before.close()
            _set_aside_what_stays()

    service = EngineService(launch, prepare, settings.server.max_waiting, policy)
    parts = Parts(service, settings, Metrics(service))
    return parts


def _text_side(facts: ModelFacts, settings: Settings) -> TextSide:
    return TextSide(facts.tokenizer, settings.server.tool_dialect, ContextLimit(facts.context, facts.trained_context))


def _set_aside_what_stays() -> None:
    """Take what is loaded out of the garbage collector's sight.

    A full collection walks over all of it while no token is sent: with the merges of a vocabulary of 152,000 that took
    49 ms, and nothing that can be measured once they are set aside (docs/log.md, 2026-11-30).
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address that `host` names. Raises SettingsError where that cannot be."""
    found = _resolved(host, port)
    sockets: list[socket.socket] = []
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        try:
            sockets.append(_bound(family, address, sockets[0].getsockname()[1] if sockets and not port else port))
        except OSError as failure:
            if sockets and family == socket.AF_INET6:
                continue  # a machine without IPv6
            raise SettingsError(
                f"cannot listen on {host} port {port}: {failure.strerror}; another --port may be free, 0 finds one"
            ) from failure
    return sockets


def _resolved(host: str, port: int) -> list[Any]:
    """What `host` names, as `getaddrinfo` says it. SettingsError for an unknown name."""
    if not host:
        raise SettingsError("setting host is empty; 127.0.0.1 is this machine alone, 0.0.0.0 every address of it")
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise SettingsError(f"setting host: {host!r} is no address of this machine; 127.0.0.1 is one") from None


def _bound(family: int, address: Sequence[Any], port: int) -> socket.socket:
    return socket.create_server((address[0], port, *address[2:]), family=family, backlog=_BACKLOG, dualstack_ipv6=False)


def addresses_of(sockets: Sequence[socket.socket]) -> tuple[str, ...]:
    """Where clients find the server."""
    found = []
    for listening in sockets:
        host, port = listening.getsockname()[:2]
        found.append(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    return tuple(found)


def serve(
    model: str | None,
    settings: Settings,
    on_listening: Callable[[Parts], None],
    on_ready: Callable[[Parts], None],
    on_draining: Callable[[Parts], None],
) -> None:
    """Serve until a signal ends it. Raises SettingsError, ModelError or EngineError if it cannot begin."""
    if model is not None and not Path(model).exists():
        raise ModelError(f"there is no model at {model}: give a model directory or a GGUF file")
    _resolved(settings.server.host, settings.server.port)
    rules = rules_of(settings.server)
    sockets = listen(settings.server.host, settings.server.port)
    load = Load(model, settings.engine)
    parts = make_parts(settings, lambda: EngineProcess.start(load))
    parts.addresses = addresses_of(sockets)
    config = uvicorn.Config(
        create_app(parts, rules),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CONNECTIONS_SECONDS,
    )
    _log_in_json()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(parts, _Server(config), sockets, on_listening, on_ready, on_draining))
    finally:
        for listening in sockets:
            listening.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class _JsonLines(logging.Formatter):
    """What uvicorn has to say, such as of a request that is no HTTP, as a line like the log's others."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging`."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return json.dumps({"time": now, "level": record.levelname.lower(), "message": record.getMessage()})


def _log_in_json() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    for name in ("uvicorn.error", "strata.server"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.WARNING)


class _Server(uvicorn.Server):
    """A uvicorn that leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn."""
        yield


async def _run(
    parts: Parts,
    server: _Server,
    sockets: list[socket.socket],
    on_listening: Callable[[Parts], None],
    on_ready: Callable[[Parts], None],
    on_draining: Callable[[Parts], None],
) -> None:
    stop, abort = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: abort.set() if stop.is_set() else stop.set())
    on_listening(parts)
    service = parts.service
    serving = asyncio.create_task(server.serve(sockets=sockets))
    service.start()
    try:
        await _until_ready(service, stop)
        if service.condition.is_ready:
            on_ready(parts)
        await stop.wait()
        if service.running:
            on_draining(parts)
        await service.drain(parts.settings.server.drain_seconds, abort)
    finally:
        await service.close()
        server.should_exit = True
        server.force_exit = abort.is_set()
        await serving
        if parts.text is not None:
            parts.text.close()


async def _until_ready(service: EngineService, stop: asyncio.Event) -> None:
    """Until the model is loaded or the server is to stop. Raises what made loading fail."""
    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            changed = asyncio.create_task(service.changed.wait())
            phase = service.condition.phase
            if phase is Phase.FAILED:
                kind = ModelError if service.failure_is_users_mistake else EngineError
                raise kind(service.last_failure or service.condition.sentence)
            if phase is Phase.READY:
                return
            await asyncio.wait((changed, stopping), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
    finally:
        stopping.cancel()
