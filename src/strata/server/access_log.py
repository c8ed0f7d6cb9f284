"""One line of JSON for every request that is over: what it was, how it ended, what it took. Never its text.

Also gives every request its id, and turns what nobody caught into a 500.
"""

import json
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata.server.errors import ApiError, error_response
from strata.types import Usage

_USABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLIENT_LEFT = 499  # in the log only: nobody was there to read a status
QUIET_PATHS = frozenset(("/health", "/v1/health", "/metrics"))  # asked every few seconds, whatever the answer is


@dataclass
class RequestRecord:
    """What the log says of one request; routes fill in what they learn."""

    request_id: str
    method: str
    path: str
    status: int = 0  # 0: nothing was sent
    end: str | None = None  # why a reply ended
    choices: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    waiting_ms: float = 0.0
    read_ms: float = 0.0
    decode_ms: float = 0.0
    first_byte_ms: float | None = None
    total_ms: float = 0.0

    def add(self, usage: Usage, end: str) -> None:
        """Take in one reply."""
        self.choices += 1
        self.end = end if self.end is None or self.end == end else f"{self.end}, {end}"
        self.prompt_tokens = usage.prompt_tokens
        self.cached_tokens = max(self.cached_tokens, usage.cached_tokens)
        self.completion_tokens += usage.completion_tokens
        self.waiting_ms = max(self.waiting_ms, 1000 * usage.waiting_seconds)
        self.read_ms = max(self.read_ms, 1000 * usage.read_seconds)
        self.decode_ms = max(self.decode_ms, 1000 * usage.decode_seconds)


def record_of(scope: Scope) -> RequestRecord:
    """The record of the request under way."""
    record = scope.get("strata.record")
    return record if isinstance(record, RequestRecord) else RequestRecord("req_none", "", scope.get("path", ""))


def request_id_of(scope: Scope) -> str:
    """The id under which the request stands in the log."""
    return record_of(scope).request_id


def as_line(record: RequestRecord, now: str) -> str:
    """One line of JSON; fields that say nothing are left out."""
    values: dict[str, Any] = {"time": now}
    for name, value in vars(record).items():
        if value not in (None, 0, 0.0) or name == "status":
            values[name] = round(value, 1) if isinstance(value, float) else value
    return json.dumps(values)


def write_to_stderr(line: str) -> None:
    """One line where a service's log is expected."""
    print(line, file=sys.stderr, flush=True)


class AccessLog:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, write: Callable[[str], None] = write_to_stderr) -> None:
        self._app = app
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(_request_id(scope), scope["method"], scope["path"])
        scope["strata.record"] = record
        started = time.perf_counter()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                record.first_byte_ms = 1000 * (time.perf_counter() - started)
                name = record.request_id.encode()
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name), (b"request-id", name)]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as bug:
            where = "".join(traceback.format_tb(bug.__traceback__))  # not its message, which may hold a user's text
            self._write(json.dumps({"id": record.request_id, "bug": type(bug).__name__, "where": where}))
            if record.status == 0:
                error = bug_error(bug, record.request_id)
                await error_response(record.path, error, record.request_id)(scope, receive, sending)
        finally:
            record.total_ms = 1000 * (time.perf_counter() - started)
            record.status = record.status or CLIENT_LEFT
            if record.path not in QUIET_PATHS:
                self._write(as_line(record, time.strftime("%Y-%m-%dT%H:%M:%S%z")))


def bug_error(bug: Exception, request_id: str) -> ApiError:
    """What a client hears of a mistake of ours; its details are in the log, under the request's id."""
    return ApiError(500, f"this is a bug in strata: {type(bug).__name__} (request {request_id} in the log)")


def _request_id(scope: Scope) -> str:
    """The caller's own id if it is a plain word, otherwise a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _USABLE_ID.fullmatch(value.decode("latin-1")):
            return str(value.decode("latin-1"))
    return "req_" + secrets.token_hex(12)
