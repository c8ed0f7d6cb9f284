"""The feed of the monitor's page: GET /strata/status, everything at once; GET /strata/events, what changes.

Knows how facts, settings and statistics are shown; measures nothing.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from strata import __version__
from strata.engine.messages import Statistics
from strata.hardware import read_memory
from strata.server.condition import Phase
from strata.server.errors import ApiError
from strata.server.json_body import StrictRoute
from strata.server.machine import MachineMeter
from strata.server.parts import Parts
from strata.server.responding import json_response
from strata.server.routes.operation import slot_json
from strata.server.streaming import EventStream
from strata.server.wire.events import named_event

QUIET_SECONDS = 2.0  # at most between two events, so that a page sees the clock go on
LEAST_SECONDS = 0.2  # at least between two events
MACHINE_SECONDS = 1.0  # between two looks at the PC
_SECRET = frozenset(("api_key", "api_key_file"))


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["monitor"])
    machine = _Machine(parts)

    @routes.get("/strata/status")
    async def status() -> Response:
        """Facts of the model, memory plan, settings in use, addresses and the state now."""
        return json_response(_status(parts, await machine.read()))

    @routes.get("/strata/events")
    async def events() -> Response:
        """Server-sent events: `status` at first, then `statistics` whenever something changes."""
        return EventStream(_events(parts, machine), _no_failure, ping_seconds=parts.settings.server.ping_seconds)

    return routes


def _no_failure(error: ApiError) -> bytes:
    return named_event("error", {"message": error.message})


class _Machine:
    """The PC's state, measured beside the event loop and not more than once a second however many pages look."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._meter = MachineMeter()
        self._held: dict[str, Any] | None = None
        self._at = 0.0

    async def read(self) -> dict[str, Any]:
        """See `MachineMeter.read`."""
        if self._held is None or time.monotonic() - self._at > MACHINE_SECONDS:
            self._at = time.monotonic()
            self._held = await asyncio.to_thread(self._meter.read, self._parts.service.engine_pid)
        return self._held


async def _events(parts: Parts, machine: _Machine) -> AsyncGenerator[bytes, None]:
    yield named_event("status", _status(parts, await machine.read()))
    before = parts.service.statistics
    while parts.service.condition.phase is not Phase.STOPPED:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(parts.service.changed.wait(), QUIET_SECONDS)
        now = parts.service.statistics
        yield named_event("statistics", _state(parts, await machine.read()) | {"rates": rates(before, now)})
        before = now
        await asyncio.sleep(LEAST_SECONDS)


def rates(before: Statistics | None, now: Statistics | None) -> dict[str, float]:
    """Tokens and windows a second between two statistics of one process; empty if they cannot be compared."""
    if before is None or now is None or now.seconds <= before.seconds:
        return {}
    seconds = now.seconds - before.seconds
    names = ("prompt_tokens", "reply_tokens", "windows")
    return {name: max(0.0, getattr(now, name) - getattr(before, name)) / seconds for name in names} | {
        "busy": min(1.0, max(0.0, now.busy_seconds - before.busy_seconds) / seconds)
    }


def _status(parts: Parts, machine: Mapping[str, Any]) -> dict[str, Any]:
    facts = parts.service.facts
    model: dict[str, Any] | None = None
    plan: dict[str, int] | None = None
    if facts is not None:
        model = {
            name: getattr(facts, name)
            for name in (
                "family", "context", "trained_context", "vocabulary_size", "parameters", "slots", "notices",
            )
        } | {"name": parts.model_name}  # fmt: skip
        plan = {
            "weights": facts.weight_bytes,
            "slot": facts.slot_bytes,
            "slots": facts.slots,
            "states": facts.slots * facts.slot_bytes,
            "machine": read_memory().total,
        }
    settings = {
        section: _shown(dataclasses.asdict(getattr(parts.settings, section))) for section in ("engine", "server")
    }
    head = {"version": __version__, "addresses": list(parts.addresses), "settings": settings}
    return head | {"model": model, "memory_plan": plan} | _state(parts, machine)


def _shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what nobody may read."""
    return {
        name: (value is not None) if name in _SECRET else value if isinstance(value, int | float | None) else str(value)
        for name, value in settings.items()
    }


def _state(parts: Parts, machine: Mapping[str, Any]) -> dict[str, Any]:
    service = parts.service
    condition, now = service.condition, service.statistics
    context = service.facts.context if service.facts is not None else 0
    state: dict[str, Any] = {
        "time": time.time(),
        "phase": condition.phase.value,
        "sentence": condition.sentence,
        "loading": {"stage": condition.stage, "done": condition.done, "total": condition.total},
        "restarts": service.restarts,
        "last_failure": service.last_failure,
        "running": service.running,
        "reading": [dataclasses.asdict(progress) for progress in service.reading.values()],
        "machine": machine,
        "statistics": None,
    }
    if now is not None:
        counters = {field.name: getattr(now, field.name) for field in dataclasses.fields(now) if field.name != "slots"}
        counters |= {"experts": dict(now.experts), "experts_read": dict(now.experts_read), "memory": dict(now.memory)}
        counters |= {"pages": dict(now.pages)}
        state["statistics"] = counters | {"slots": [slot_json(view, context) for view in now.slots]}
    return state
