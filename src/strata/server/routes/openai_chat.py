"""POST /v1/chat/completions: from the OpenAI API's request to a prepared prompt, and back through `responding`."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from strata.server.grammar_fields import grammar_of
from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.replies import Asked
from strata.server.responding import chat_asked, respond
from strata.server.text_side import ReadyPrompt
from strata.server.wire.openai_chat import ChatRequest, ChatWriter
from strata.server.wire.openai_messages import conversation_of

_STREAM: dict[int | str, dict[str, Any]] = {200: {"description": "The answer, or its chunks as server-sent events."}}


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["OpenAI"])

    @routes.post("/v1/chat/completions", responses=_STREAM)
    @routes.post("/chat/completions", include_in_schema=False)
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation."""
        asked, prompt = await asyncio.to_thread(_prepared, parts, body)
        text, _ = parts.loaded()
        writer = ChatWriter(body, parts.model_name, text.tokenizer, prompt.token_ids)
        return await respond(request, parts, asked, writer, stream=bool(body.stream))

    return routes


def _prepared(parts: Parts, body: ChatRequest) -> tuple[Asked, ReadyPrompt]:
    """Everything that can be wrong with the request is found here."""
    text, facts = parts.loaded()
    body.check()
    options = body.options(parts.sampling_defaults, body.wanted_tokens, body.wanted_logprobs)
    prompt = text.chat(conversation_of(body, text), grammar_of(body))
    return chat_asked(text, facts, prompt, options, 1 if body.n is None else body.n), prompt
