"""Server-sent events: ready bytes out, signs of life in silence, and a client that left is noticed in every phase.

Knows ASGI and SSE; not what the bytes mean.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from strata.server.errors import ApiError

COMMENT_PING = b":\n\n"
LOOK_SECONDS = 1.0  # between two looks at a client that takes nothing
SEND_SECONDS = 60.0  # a client that takes no byte for so long is taken to be gone
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies pass every event on at once
}

Result = TypeVar("Result")


class ClientLeft(Exception):
    """Nobody reads the answer any more."""


class EventStream(Response):
    """Sends what `events` yields: each item is the bytes of whole events, possibly none.

    The status goes out with the first bytes or the first ping. Until then an exception of `events` is an answer of its
    own (it is raised); afterwards `failure` makes the event of an ApiError. When the client leaves, `events` is
    closed, wherever it waits.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        failure: Callable[[ApiError], bytes],
        ping: bytes = COMMENT_PING,
        ping_seconds: float = 5.0,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._failure = failure
        self._ping = ping
        self._ping_seconds = ping_seconds
        self._has_begun = False
        self._writing = asyncio.Lock()
        self._last_write = time.monotonic()  # when it began

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        pumping = asyncio.ensure_future(self._pump(send))
        others = [asyncio.ensure_future(wait_until_left(receive)), asyncio.ensure_future(self._keep_alive(send))]
        try:
            await asyncio.wait((pumping, *others), return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                pumping.result()
        finally:
            for task in (pumping, *others):
                await _end(task)
            await self._events.aclose()

    async def _pump(self, send: Send) -> None:
        """Everything that `events` yields, one write each: no task and no timer a token."""
        try:
            async for chunk in self._events:
                if chunk:
                    await self._write(send, chunk)
        except ApiError as error:
            if not self._has_begun:
                raise
            await self._write(send, self._failure(error))
        async with self._writing:
            await self._begin(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        """Pings in silence. Returns when the client has taken nothing for too long."""
        while True:
            silence = time.monotonic() - self._last_write
            if self._writing.locked():
                if silence > SEND_SECONDS:
                    return
                await asyncio.sleep(LOOK_SECONDS)
            elif silence >= self._ping_seconds:
                await self._write(send, self._ping)
            else:
                await asyncio.sleep(self._ping_seconds - silence)

    async def _write(self, send: Send, chunk: bytes) -> None:
        async with self._writing:
            self._last_write = time.monotonic()
            await self._begin(send)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _begin(self, send: Send) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def wait_until_left(receive: Receive) -> None:
    """Returns when the client has closed the connection. The request's body must have been read."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; if the client leaves first, `work` is cancelled and ClientLeft raised."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(wait_until_left(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        leaving.cancel()
        await _end(working)


async def _end(task: "asyncio.Future[Any]") -> None:
    """Cancel a task and wait until it has let go of everything."""
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
    elif not task.cancelled():
        task.exception()  # has been looked at
