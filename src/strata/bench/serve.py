"""Load on a running server from many clients at once: times to the first token, gaps, tokens a second.

Knows the OpenAI completions API over bare sockets and the names of vLLM's serving benchmark; no engine. One thread of
one process makes the load, so figures of thousands of tokens a second are limits of this client.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from strata.errors import SettingsError

PERCENTILES = (50, 90, 99)
_WORDS = ("ship", "tea", "river", "stone", "green", "walk", "light", "seven", "house", "under")


@dataclass(frozen=True)
class LoadPlan:
    """What is asked of the server."""

    url: str = "http://127.0.0.1:8080"
    api_key: str | None = None
    clients: int = 8  # at once
    requests: int = 32  # in all
    prompt_words: int = 64  # ten different words in random order: about as many tokens
    reply_tokens: int = 64
    leave_share: float = 0.0  # of the clients, that leave in the middle of their reply
    requests_a_second: float | None = None  # of a Poisson process; None: each client asks again at once
    seed: int = 0

    def check(self) -> None:
        """Raises SettingsError for what cannot be run."""
        if urlsplit(self.url).scheme != "http" or not urlsplit(self.url).hostname:
            raise SettingsError(f"url is {self.url!r}; it must look like http://127.0.0.1:8080")
        for name in ("clients", "requests", "prompt_words", "reply_tokens"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.leave_share <= 1:
            raise SettingsError(f"leave_share is {self.leave_share}; it must be from 0 to 1")
        if self.requests_a_second is not None and self.requests_a_second <= 0:
            raise SettingsError(f"requests_a_second is {self.requests_a_second}; it must be above 0")


@dataclass(frozen=True)
class Request:
    """One request's times, in seconds from its beginning."""

    outcome: str  # complete, left, refused, failed
    arrivals: tuple[float, ...] = ()  # of every piece of the reply
    prompt_tokens: int = 0
    reply_tokens: int = 0
    seconds: float = 0.0
    detail: str = ""  # of what was refused or failed


@dataclass(frozen=True)
class LoadReport:
    """Figures under vLLM's names; times in milliseconds."""

    plan: LoadPlan
    duration: float  # seconds
    completed: int
    left: int
    refused: int
    failed: int
    details: tuple[str, ...]  # of what failed, each once
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    ttft: dict[str, float]
    tpot: dict[str, float]
    itl: dict[str, float]
    e2el: dict[str, float]

    def as_json(self) -> str:
        """All of it; percentiles as `p99_ttft_ms`, the longest gap as `max_itl_ms`."""
        values = asdict(self)
        for name in ("ttft", "tpot", "itl", "e2el"):
            values |= {f"{key}_{name}_ms": figure for key, figure in values.pop(name).items()}
        values["plan"].pop("api_key")
        return json.dumps(values, indent=1)


def run_load(plan: LoadPlan) -> LoadReport:
    """Make the load and wait for its end. Raises SettingsError if the plan or the server cannot be used."""
    plan.check()
    return asyncio.run(_run(plan))


async def _run(plan: LoadPlan) -> LoadReport:
    chance = random.Random(plan.seed)
    starts: asyncio.Queue[tuple[float, bool] | None] = asyncio.Queue()
    at = 0.0
    for _ in range(plan.requests):
        starts.put_nowait((at, chance.random() < plan.leave_share))
        at += chance.expovariate(plan.requests_a_second) if plan.requests_a_second else 0.0
    prompts = random.Random(plan.seed + 1)
    began = time.perf_counter()
    done: list[Request] = []

    async def client() -> None:
        while not starts.empty():
            start = starts.get_nowait()
            if start is None:
                return
            await asyncio.sleep(max(0.0, began + start[0] - time.perf_counter()))
            prompt = " ".join(prompts.choice(_WORDS) for _ in range(plan.prompt_words))
            done.append(await _ask(plan, prompt, leaves_after=prompts.randint(0, 4) if start[1] else None))

    await asyncio.gather(*(client() for _ in range(min(plan.clients, plan.requests))))
    return summed_up(plan, done, time.perf_counter() - began)


async def _ask(plan: LoadPlan, prompt: str, leaves_after: int | None) -> Request:
    """One request; `leaves_after` so many pieces of the reply the client closes the connection."""
    body = {"prompt": prompt, "max_tokens": plan.reply_tokens, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    began = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(urlsplit(plan.url).hostname, urlsplit(plan.url).port or 80)
    except OSError as failure:
        return Request("failed", detail=f"no connection: {failure}")
    try:
        writer.write(_request_bytes(plan, json.dumps(body).encode()))
        return await _read_reply(reader, began, leaves_after)
    except (OSError, asyncio.IncompleteReadError, ValueError) as failure:
        return Request("failed", detail=f"{type(failure).__name__}: {failure}")
    finally:
        writer.close()


def _request_bytes(plan: LoadPlan, body: bytes) -> bytes:
    parts = urlsplit(plan.url)
    head = [
        f"POST {parts.path.rstrip('/')}/v1/completions HTTP/1.0",  # without chunks: events are lines
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if plan.api_key:
        head.append(f"Authorization: Bearer {plan.api_key}")
    return "\r\n".join([*head, "", ""]).encode() + body


async def _read_reply(reader: asyncio.StreamReader, began: float, leaves_after: int | None) -> Request:
    status = int((await reader.readline()).split()[1])
    while (await reader.readline()).strip():
        pass
    if status != 200:
        detail = f"HTTP {status}: {(await reader.read(500)).decode('utf-8', 'replace')}"
        return Request("refused" if status in (429, 503) else "failed", detail=detail)
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            seconds = time.perf_counter() - began
            tokens = (usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))
            return Request("complete", tuple(arrivals), *tokens, seconds)
        data = json.loads(line[6:])
        if "error" in data:
            return Request("failed", tuple(arrivals), detail=str(data["error"].get("message")))
        usage = data.get("usage") or usage
        if data.get("choices") and data["choices"][0].get("finish_reason") is None:
            arrivals.append(time.perf_counter() - began)
            if leaves_after is not None and len(arrivals) > leaves_after:
                return Request("left", tuple(arrivals))
    return Request("failed", tuple(arrivals), detail="the stream ended without [DONE]")


def summed_up(plan: LoadPlan, done: Sequence[Request], duration: float) -> LoadReport:
    """The figures of all requests that came to their end."""
    whole = [request for request in done if request.outcome == "complete"]
    gaps = [b - a for request in whole for a, b in zip(request.arrivals, request.arrivals[1:], strict=False)]
    spread = [
        (request.arrivals[-1] - request.arrivals[0]) / (request.reply_tokens - 1)
        for request in whole
        if request.reply_tokens > 1 and request.arrivals
    ]
    read = sum(request.prompt_tokens for request in whole)
    written = sum(request.reply_tokens for request in whole)
    counts = {kind: sum(request.outcome == kind for request in done) for kind in ("left", "refused", "failed")}
    return LoadReport(
        plan=plan,
        duration=duration,
        completed=len(whole),
        **counts,
        details=tuple(sorted({request.detail for request in done if request.detail})),
        total_input_tokens=read,
        total_output_tokens=written,
        request_throughput=len(whole) / duration,
        output_throughput=written / duration,
        total_token_throughput=(read + written) / duration,
        ttft=figures([request.arrivals[0] for request in whole if request.arrivals]),
        tpot=figures(spread),
        itl=figures(gaps),
        e2el=figures([request.seconds for request in whole]),
    )


def figures(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles (of the nearest rank) and maximum in milliseconds; empty without values."""
    if not seconds:
        return {}
    ordered = sorted(1000 * value for value in seconds)
    found = {"mean": sum(ordered) / len(ordered)}
    for percentile in PERCENTILES:
        rank = -(-percentile * len(ordered) // 100)  # rounded up
        found[f"p{percentile}"] = ordered[max(0, rank - 1)]
    return found | {"max": ordered[-1]}
