"""The road from a prepared request to an answer, streamed or whole; the same for every API.

Knows when an answer is over and who must hear of it (log, metrics); a `Writer` knows the words.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from strata.engine.messages import ModelFacts
from strata.sampling.options import SamplingOptions
from strata.server.access_log import RequestRecord, record_of
from strata.server.asking import token_requests
from strata.server.errors import ApiError
from strata.server.metrics import ReplyClock
from strata.server.parts import Parts
from strata.server.replies import Asked, Choice, Over, ReplyPart, Said, collect, replies
from strata.server.streaming import COMMENT_PING, ClientLeft, EventStream, unless_client_leaves
from strata.server.text_side import ReadyPrompt, TextSide
from strata.server.wire.events import to_json


class Writer(Protocol):
    """Tells the parts of replies in the words of one API."""

    def feed(self, part: ReplyPart) -> bytes:
        """The events of a stream that tell this part; possibly none."""

    def end(self) -> bytes:
        """The events behind the last part."""

    def failure(self, error: ApiError) -> bytes:
        """The event of an error behind the first byte."""

    def answer(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The whole answer."""


async def respond(
    request: Request, parts: Parts, asked: Asked, writer: Writer, *, stream: bool, ping: bytes = COMMENT_PING
) -> Response:
    """Run the request. Raises ApiError for what must be an answer of its own."""
    told = observed(parts, record_of(request.scope), asked)
    if stream:
        return EventStream(written_events(told, writer), writer.failure, ping, parts.settings.server.ping_seconds)
    try:
        choices = await unless_client_leaves(request, collect(told, len(asked.requests)))
    except ClientLeft:
        return Response(status_code=499)  # which nobody reads
    return json_response(writer.answer(choices))


def chat_asked(
    text: TextSide, facts: ModelFacts, prompt: ReadyPrompt, options: SamplingOptions, choices: int = 1
) -> Asked:
    """A chat prompt as requests to the engine. ApiError 400 if it does not fit the model."""
    requests = token_requests(
        prompt.token_ids, options, facts, choices, prompt.grammar, None, prompt.param, prompt.boundaries
    )
    return Asked(requests, text.reader(prompt, requests[0]), prompt.most_calls, prompt.notices)


def json_response(value: Any, status: int = 200) -> Response:
    """JSON, compact."""
    return Response(to_json(value), status, media_type="application/json")


async def written_events(parts: AsyncGenerator[ReplyPart, None], writer: Writer) -> AsyncGenerator[bytes, None]:
    """Every part as the bytes of its events."""
    try:
        async for part in parts:
            yield writer.feed(part)
        yield writer.end()
    finally:
        await parts.aclose()


async def observed(parts: Parts, record: RequestRecord, asked: Asked) -> AsyncGenerator[ReplyPart, None]:
    """The replies; log and metrics hear of them."""
    clocks = [ReplyClock(parts.metrics) for _ in asked.requests]
    source = replies(parts.service, asked)
    missing = len(clocks)
    record.prompt_tokens = len(asked.requests[0].prompt)
    try:
        async for part in source:
            if isinstance(part, Said) and part.token_ids:
                clocks[part.choice].window(len(part.token_ids))
            elif isinstance(part, Over):
                missing -= 1
                clocks[part.choice].finished(part.usage, part.reason)
                record.add(part.usage, part.reason)
            yield part
    except ApiError as error:
        record.end = f"error {error.status}"
        raise
    except (asyncio.CancelledError, GeneratorExit):
        if missing:
            record.end = "client left"
        raise
    finally:
        await source.aclose()
