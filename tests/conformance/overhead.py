"""What a streamed token costs in the server's process: from the engine's message to the bytes for the socket.

Runs the application over an engine that is told what to say; clients are another process. `python -m
tests.conformance.overhead` measures once and prints JSON.
"""

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections import deque
from contextvars import ContextVar
from typing import Any, ClassVar

import uvicorn

from strata.bench.serve import LoadPlan, figures, run_load
from strata.engine.messages import Drawn, FromEngine
from strata.engine.request import TokenRequest
from strata.sampling.draw import Draw
from strata.sampling.options import SamplingOptions
from strata.server.access_log import RequestRecord
from strata.server.app import create_app
from strata.server.metrics import Metrics
from strata.server.parts import Parts
from strata.server.replies import Asked
from strata.server.responding import observed, written_events
from strata.server.run import listen, make_parts
from strata.server.security import rules_of
from strata.server.service import EngineService, Submission
from strata.server.wire.openai_chat import ChatRequest, ChatWriter
from strata.settings import ServerSettings, Settings
from strata.text.reply import ReplyFormat, ReplyReader
from strata.types import Usage
from tests.conformance.table import Row
from tests.server.fake_engine import FakeEngine, Reply, Script, tokenizer

STREAMS = 8
TOKENS = 250
SECONDS_A_TOKEN = 0.02
MOST_MS = 0.3

_arrivals: ContextVar[deque[float]] = ContextVar("arrivals")


class _TimedEngine(FakeEngine):
    """Notes when a token's message has been taken in."""

    streams: ClassVar[dict[int, deque[float]]] = {}

    def receive(self, timeout: float | None) -> FromEngine | None:
        message = super().receive(timeout)
        if isinstance(message, Drawn) and message.request_id in self.streams:
            self.streams[message.request_id].append(time.perf_counter())
        return message


async def measure() -> dict[str, Any]:
    """Serve the clients of another process and time every token."""
    begins = itertools.count()  # streams are out of step, so that none waits behind the others

    def reply(request: TokenRequest) -> Reply:
        late = next(begins) % STREAMS * SECONDS_A_TOKEN / STREAMS
        return Reply("word " * TOKENS, read_seconds=late, seconds_a_token=SECONDS_A_TOKEN)

    script = Script(reply, STREAMS, 4096)
    settings = Settings(server=ServerSettings(port=0))
    parts = make_parts(settings, lambda: _TimedEngine(script))
    spent: list[float] = []
    inner = create_app(parts, rules_of(settings.server), lambda line: None)
    submit = parts.service.submit

    def noted(requests: Any) -> Any:
        submission = submit(requests)
        for number, held in parts.service._running.items():
            if held is submission:
                _TimedEngine.streams[number] = _arrivals.get()
        return submission

    parts.service.submit = noted  # type: ignore[method-assign]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        arrivals: deque[float] = deque()
        _arrivals.set(arrivals)

        async def timed(message: Any) -> None:
            await send(message)
            if arrivals and message.get("body"):
                spent.append(time.perf_counter() - arrivals[0])
                arrivals.clear()

        await inner(scope, receive, timed)

    sockets = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve(sockets=sockets))
    parts.service.start()
    while not parts.service.condition.is_ready:
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    clients = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.conformance.overhead", url)
    await clients.wait()
    await parts.service.close()
    server.should_exit = True
    await serving
    return {"tokens": len(spent), "sent": figures(spent)}


async def own_code() -> dict[str, float]:
    """From a message to the bytes of its event, without sockets and without other work between them; milliseconds."""
    body = ChatRequest(messages=[{}], stream=True)
    request = TokenRequest((5, 6, 7), SamplingOptions())
    service = EngineService(lambda: FakeEngine(Script()), lambda facts: None)
    asked = Asked((request,), lambda: ReplyReader(tokenizer(), ReplyFormat()))
    submission = Submission(service, [1])
    service.submit = lambda requests: submission  # type: ignore[method-assign]
    parts = Parts(service, Settings(), Metrics(service))
    record = RequestRecord("request", "POST", "/v1/chat/completions")
    written = written_events(observed(parts, record, asked), ChatWriter(body, "pocket", tokenizer(), request.prompt))
    spent: list[float] = []
    for place, token_id in enumerate(tokenizer().encode("the words of a long reply " * 400), start=1):
        usage = Usage(3, place, place, 0, 0, 0.1, 0.1)
        began = time.perf_counter()
        submission.take(Drawn(1, (Draw(token_id),), usage))
        await anext(written)
        spent.append(time.perf_counter() - began)
    await written.aclose()
    return figures(spent)


def overhead() -> Row:
    """Measure in a process of its own."""
    ran = subprocess.run([sys.executable, "-m", "tests.conformance.overhead"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    own, sent = found["own"], found["sent"]
    result = (
        f"p50 {own['p50']:.3f}, p99 {own['p99']:.3f} ms from the engine's message to the event's bytes; with the event "
        f"loop's turn and the socket, {STREAMS} streams: p50 {sent['p50']:.3f}, p99 {sent['p99']:.3f} ms"
    )
    return Row("a streamed token in the server's process", f"p99 at most {MOST_MS} ms", result, own["p99"] <= MOST_MS)


def main() -> None:
    """With an address: be the clients. Without: measure."""
    if len(sys.argv) > 1:
        run_load(LoadPlan(sys.argv[1], clients=STREAMS, requests=STREAMS, reply_tokens=TOKENS))
        return
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure()) | {"own": runner.run(own_code())}))


if __name__ == "__main__":
    main()
