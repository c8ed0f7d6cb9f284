"""POST /v1/messages and /v1/messages/count_tokens, in the words of the Anthropic API."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from strata.server.access_log import request_id_of
from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.replies import Asked
from strata.server.responding import chat_asked, json_response, respond
from strata.server.wire.anthropic_messages import MessagesRequest, PromptRequest, conversation_of
from strata.server.wire.anthropic_replies import PING, MessageWriter

_STREAM: dict[int | str, dict[str, Any]] = {200: {"description": "The message, or its events."}}


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["Anthropic"])

    @routes.post("/v1/messages", responses=_STREAM)
    async def messages(request: Request, body: MessagesRequest) -> Response:
        """Answer a conversation."""
        asked = await asyncio.to_thread(_prepared, parts, body)
        _, facts = parts.loaded()
        prompt_tokens = len(asked.requests[0].prompt)
        writer = MessageWriter(parts.model_name, prompt_tokens, facts.context, request_id_of(request.scope))
        return await respond(request, parts, asked, writer, stream=bool(body.stream), ping=PING)

    @routes.post("/v1/messages/count_tokens")
    async def count_tokens(body: PromptRequest) -> Response:
        """How many tokens the prompt of a conversation has, template and tools included."""
        text, _ = parts.loaded()
        token_ids = await asyncio.to_thread(lambda: text.token_ids(conversation_of(body, text)))
        return json_response({"input_tokens": len(token_ids)})

    return routes


def _prepared(parts: Parts, body: MessagesRequest) -> Asked:
    """Everything that can be wrong with the request is found here."""
    text, facts = parts.loaded()
    options = body.options(parts.sampling_defaults)
    prompt = text.chat(conversation_of(body, text), body.grammar)
    return chat_asked(text, facts, prompt, options)
