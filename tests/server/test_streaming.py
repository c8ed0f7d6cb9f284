"""Streams: the order of bytes, signs of life, errors before and behind the first byte, and clients that leave."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from strata.engine.messages import Cancel
from strata.server.errors import ApiError, openai_error
from strata.server.streaming import EventStream
from strata.server.wire.events import data_event
from tests.server.fake_engine import Reply, Script
from tests.server.running import Running, parse_events, running

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi", "max_tokens": 50},
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "hi", "max_output_tokens": 50},
}


def sent_by(events: AsyncGenerator[bytes, None], ping_seconds: float = 5.0, leaves_after: float = 30.0) -> list[Any]:
    """What an EventStream sends to a client that leaves after so many seconds."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(leaves_after)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("status", message.get("body")))

    async def main() -> None:
        stream = EventStream(events, lambda error: data_event(openai_error(error)), b"PING", ping_seconds)
        await stream({"type": "http"}, receive, send)

    asyncio.run(main())
    return sent


def test_bytes_go_out_as_they_come_and_empty_ones_do_not() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b""
        yield b"one"
        yield b"two"

    assert sent_by(events()) == [200, b"one", b"two", b""]


def test_silence_is_filled_with_pings_from_the_first_moment() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.25)
        yield b"late"

    sent = sent_by(events(), ping_seconds=0.1)
    assert sent == [200, b"PING", b"PING", b"late", b""]


def test_an_error_before_the_first_byte_is_raised_and_behind_it_is_an_event() -> None:
    async def early() -> AsyncGenerator[bytes, None]:
        raise ApiError(400, "wrong")
        yield b""

    async def late() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise ApiError(503, "lost")

    with pytest.raises(ApiError, match="wrong"):
        sent_by(early())
    status, first, error, end = sent_by(late())
    assert (status, first, end) == (200, b"one", b"")
    assert b'"message":"lost"' in error


def test_a_client_that_leaves_closes_the_events_where_they_wait() -> None:
    closed = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await asyncio.sleep(30)
        finally:
            closed.append(time.monotonic())

    started = time.monotonic()
    assert sent_by(events(), leaves_after=0.1) == [200, b"one"]
    assert closed and closed[0] - started < 1


def slow(read_seconds: float = 0.0, seconds_a_token: float = 0.0) -> Script:
    return Script(lambda request: Reply("word " * 40, read_seconds=read_seconds, seconds_a_token=seconds_a_token))


def cancelled(server: Running) -> int:
    return sum(isinstance(message, Cancel) for message in server.engine.received)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", ["waiting", "reading", "decoding"])
@pytest.mark.parametrize("path", PATHS)
def test_leaving_frees_the_slot_in_every_phase(path: str, phase: str, stream: bool) -> None:
    body = PATHS[path] | {"stream": stream}
    with running(slow(30 if phase == "reading" else 0, 30 if phase == "waiting" else 0.01)) as server:
        held = [server.open_stream(path, PATHS[path]) for _ in range(2 if phase == "waiting" else 0)]
        for connection in held:
            connection.__enter__()
        server.until(lambda: len(server.engine.requests) == len(held))
        with server.open_stream(path, body):
            server.until(lambda: len(server.engine.requests) == len(held) + 1)
            if phase == "decoding":
                time.sleep(0.05)
        left = time.monotonic()
        server.until(lambda: cancelled(server) == 1)
        assert time.monotonic() - left < 1
        assert server.parts.service.running == len(held)
        for connection in held:
            connection.__exit__(None, None, None)
        server.until(lambda: not server.engine.running and server.parts.service.running == 0)


def test_leaving_is_logged_as_such() -> None:
    with running(slow(30)) as server:
        with server.open_stream("/v1/chat/completions", CHAT | {"stream": True}):
            server.until(lambda: bool(server.engine.requests))
        server.until(lambda: bool(server.log))
        assert server.log[-1]["end"] == "client left"
        assert server.log[-1]["prompt_tokens"] == 9


@pytest.mark.parametrize("path", PATHS)
def test_pings_come_while_a_request_waits_and_reads(path: str) -> None:
    with running(slow(0.35), ping_seconds=0.1) as server:
        text = _whole(server, path, PATHS[path] | {"stream": True})
        pings = text.count("event: ping") - 1 if path == "/v1/messages" else text.count(":\n\n")
        assert pings >= 2
        assert list(parse_events(text))


@pytest.mark.parametrize("path", PATHS)
def test_an_engine_that_dies_ends_a_stream_with_an_error_event(path: str) -> None:
    with running(slow(0, 0.05)) as server:
        with server.open_stream(path, PATHS[path] | {"stream": True}) as connection:
            received = connection.recv(1 << 16)
            while b"word" not in received:
                received += connection.recv(1 << 16)
            died = time.monotonic()
            server.call(server.engine.die)
            while not received.endswith(b"0\r\n\r\n"):
                piece = connection.recv(1 << 16)
                assert piece, received
                received += piece
        assert time.monotonic() - died < 1
        assert b"ended by signal 9" in received
        assert b"[DONE]" not in received
        assert (b"event: error" in received) == (path == "/v1/messages")
        assert (b"event: response.failed" in received) == (path == "/v1/responses")


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_dies_before_the_first_byte_is_a_503(stream: bool) -> None:
    with running(Script(lambda request: Reply(read_seconds=30))) as server:
        answers: list[Any] = []
        asking = _in_thread(lambda: answers.append(server.request("POST", "/v1/completions", {"prompt": "a"})))
        server.until(lambda: bool(server.engine.requests))
        server.call(server.engine.die)
        asking.join(5)
        status, headers, answer = answers[0]
        assert status == 503
        assert headers["retry-after"] == "2"
        assert answer["error"]["code"] == "restarting"
        server.until_ready()


def test_a_client_that_reads_nothing_does_not_hold_its_slot() -> None:
    """The engine's work does not wait for the client: a reply is short beside what the sockets hold."""
    with running(slow(0, 0.001)) as server, server.open_stream("/v1/chat/completions", CHAT | {"stream": True}) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        server.until(lambda: len(server.engine.ended) == 1)
        assert server.parts.service.running == 0


def _whole(server: Running, path: str, body: Any) -> str:
    status, _, text = server.request("POST", path, body)
    assert status == 200
    return str(text)


def _in_thread(work: Any) -> Any:
    import threading

    thread = threading.Thread(target=work)
    thread.start()
    return thread
