"""POST /v1/responses, stateless, as Codex uses it. What needs stored answers says so."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from strata.server.errors import ApiError
from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.replies import Asked
from strata.server.responding import chat_asked, json_response, respond
from strata.server.wire.responses_input import ResponsesRequest, conversation_of
from strata.server.wire.responses_replies import ResponseWriter

_STREAM: dict[int | str, dict[str, Any]] = {200: {"description": "The response, or its events."}}
_STATELESS: dict[int | str, dict[str, Any]] = {404: {"description": "Responses are not stored."}}


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["OpenAI"])

    @routes.post("/v1/responses", responses=_STREAM)
    async def responses(request: Request, body: ResponsesRequest) -> Response:
        """Answer a conversation."""
        asked = await asyncio.to_thread(_prepared, parts, body)
        text, _ = parts.loaded()
        writer = ResponseWriter(body, parts.model_name, text.tokenizer, asked.requests[0].options)
        return await respond(request, parts, asked, writer, stream=bool(body.stream))

    @routes.post("/v1/responses/input_tokens")
    async def input_tokens(body: ResponsesRequest) -> Response:
        """How many tokens the prompt has, template and tools included."""
        text, _ = parts.loaded()
        token_ids = await asyncio.to_thread(lambda: text.token_ids(conversation_of(body, text)))
        return json_response({"object": "response.input_tokens", "input_tokens": len(token_ids)})

    @routes.get("/v1/responses/{response_id}", responses=_STATELESS)
    async def stored_response(response_id: str) -> Response:
        """Always 404: nothing is stored."""
        raise ApiError(404, f"response {response_id[:100]!r} is not stored: this server is stateless", "response_id")

    return routes


def _prepared(parts: Parts, body: ResponsesRequest) -> Asked:
    """Everything that can be wrong with the request is found here."""
    text, facts = parts.loaded()
    body.check()
    options = body.options(parts.sampling_defaults, body.max_output_tokens, body.wanted_logprobs)
    prompt = text.chat(conversation_of(body, text), body.grammar)
    return chat_asked(text, facts, prompt, options)
