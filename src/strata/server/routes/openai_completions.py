"""POST /v1/completions: texts or token ids to continue, their own log-probabilities included."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from strata.engine.request import TokenRequest
from strata.server.asking import MOST_CHOICES, check_token_ids, token_requests
from strata.server.errors import ApiError
from strata.server.grammar_fields import grammar_of
from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.replies import Asked
from strata.server.responding import respond
from strata.server.text_side import ReadyPrompt, TextSide
from strata.server.wire.openai_completions import USUAL_TOKENS, CompletionRequest, CompletionWriter, EchoedPrompt
from strata.text.reply import ReplyFormat

_STREAM: dict[int | str, dict[str, Any]] = {200: {"description": "The answer, or its chunks as server-sent events."}}


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["OpenAI"])

    @routes.post("/v1/completions", responses=_STREAM)
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Continue texts."""
        text, _ = parts.loaded()
        asked, prompts = await asyncio.to_thread(_prepared, parts, body)
        writer = CompletionWriter(body, parts.model_name, text.tokenizer, prompts)
        return await respond(request, parts, asked, writer, stream=bool(body.stream))

    @routes.post("/v1/embeddings", include_in_schema=False)
    async def embeddings() -> Response:
        """Always 501: a client that asks hears so in the shape that it knows."""
        raise ApiError(501, "this server makes no embeddings", code="not_implemented")

    return routes


def _prepared(parts: Parts, body: CompletionRequest) -> tuple[Asked, list[EchoedPrompt]]:
    """Everything that can be wrong with the request is found here."""
    text, facts = parts.loaded()
    body.check()
    defaults = {"max_tokens": USUAL_TOKENS} | dict(parts.sampling_defaults)
    options = body.options(defaults, body.wanted_tokens, body.wanted_logprobs)
    given = body.prompts
    n = 1 if body.n is None else body.n
    if not given:
        raise ApiError(400, "prompt is an empty list: give at least one prompt", param="prompt")
    if len(given) * n > MOST_CHOICES:
        raise ApiError(
            400, f"{len(given)} prompts of {n} replies each; together from 1 to {MOST_CHOICES} work", param="prompt"
        )
    scores = body.wanted_logprobs if body.echo else None
    requests: list[TokenRequest] = []
    echoed = []
    for prompt in given:
        ready = _ready(text, prompt, facts.vocabulary_size)
        requests += token_requests(ready.token_ids, options, facts, n, grammar_of(body), scores, "prompt")
        shown = prompt if isinstance(prompt, str) else text.tokenizer.decode(prompt, show_special=True)
        echoed.append(EchoedPrompt(shown if body.echo else "", ready.token_ids))
    return Asked(tuple(requests), text.reader(ready, requests[0])), echoed


def _ready(text: TextSide, prompt: str | list[int], vocabulary_size: int) -> ReadyPrompt:
    if isinstance(prompt, str):
        return text.plain(prompt)
    check_token_ids(prompt, vocabulary_size, "prompt")
    return ReadyPrompt(tuple(prompt), ReplyFormat())
