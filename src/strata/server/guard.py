"""The door: turns requests away as the rules say, reads bodies whole and within limits, answers browsers' questions.

Knows ASGI; who may come in is `security.py`'s matter.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata.server.access_log import request_id_of
from strata.server.errors import ApiError, error_response
from strata.server.memory import LARGE_BYTES, give_back
from strata.server.security import Head, Rules, too_large

BODY_SECONDS = 60.0  # for a whole body to arrive
_CORS_HEADERS = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta"


class Guard:
    """The ASGI application around another: turns requests away, reads bodies whole, answers browsers' questions."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = _head_of(scope)
        if self._rules.allows_origin(head.origin):
            send = _with_headers(send, _cors_headers(head.origin or ""))
        refusal = self._rules.refusal(head)
        if refusal is None and head.method == "OPTIONS":
            await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", b"GET, POST")]})
            await send({"type": "http.response.body", "body": b""})
            return
        body = b""
        if refusal is None and head.method in ("POST", "PUT", "PATCH"):
            try:
                body = await _read_body(receive, self._rules.most_body_bytes)
            except _ClientLeft:
                return
            except ApiError as error:
                refusal = error
        if refusal is not None:
            await error_response(head.path, refusal, request_id_of(scope))(scope, receive, send)
            return
        size = len(body)
        receive = _replay(body, receive)
        del body
        try:
            await self._app(scope, receive, send)
        finally:
            del receive
            if size >= LARGE_BYTES:
                await asyncio.shield(asyncio.to_thread(give_back, size))


class _ClientLeft(Exception):
    pass


async def _read_body(receive: Receive, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _ClientLeft
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most_bytes:
                    raise too_large(most_bytes)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(408, f"the request's body did not arrive within {BODY_SECONDS:.0f} s") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first gives the body that was read, then what the connection says."""
    held = [body]  # let go of when it is handed out: it may be large, and a reply long

    async def replayed() -> Message:
        if held:
            return {"type": "http.request", "body": held.pop(), "more_body": False}
        return await receive()

    return replayed


def _with_headers(send: Send, headers: Sequence[tuple[bytes, bytes]]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return sending


def _cors_headers(origin: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", _CORS_HEADERS.encode()),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
    ]


def _head_of(scope: Scope) -> Head:
    headers = _headers(scope["headers"])
    return Head(
        method=scope["method"],
        path=scope["path"],
        host=headers.get("host"),
        origin=headers.get("origin"),
        authorization=headers.get("authorization"),
        api_key=headers.get("x-api-key"),
        content_type=headers.get("content-type"),
        content_length=headers.get("content-length"),
        content_encoding=headers.get("content-encoding"),
    )


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
