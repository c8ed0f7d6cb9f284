"""Text to token ids and back, and conversations to prompts, in the words of llama.cpp and of vLLM.

Both call their route /tokenize: `content` is llama.cpp's field, `prompt` and `messages` are vLLM's.
"""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from strata.server.asking import Fields, check_token_ids
from strata.server.errors import ApiError
from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.responding import json_response
from strata.server.text_side import TextSide
from strata.server.wire.openai_messages import ChatFields, conversation_of


class TokenizeRequest(ChatFields):
    """POST /tokenize."""

    content: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None  # type: ignore[assignment]
    add_special: bool = False
    add_special_tokens: bool = True
    parse_special: bool = True
    with_pieces: bool = False
    return_token_strs: bool = False


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    tokens: list[int]


class TemplateRequest(ChatFields):
    """POST /apply-template."""


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["text"])

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        """Token ids of a text or a conversation."""
        return json_response(await asyncio.to_thread(_tokenized, parts, body))

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids, control tokens included."""
        text, facts = parts.loaded()
        check_token_ids(body.tokens, facts.vocabulary_size, "tokens")
        decoded = text.tokenizer.decode(body.tokens, show_special=True)
        return json_response({"content": decoded, "prompt": decoded})

    @routes.post("/apply-template")
    async def apply_template(body: TemplateRequest) -> Response:
        """The prompt that a conversation becomes."""
        text, _ = parts.loaded()
        rendered = await asyncio.to_thread(text.render, conversation_of(body, text))
        return json_response({"prompt": rendered.text})

    @routes.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        """What lm-evaluation-harness asks for."""
        text, facts = parts.loaded()
        config = dict(text.files.tokenizer_config)
        ends = sorted(facts.end_of_text_ids)
        config |= {"eos_token_id": ends[0] if ends else None, "chat_template": text.files.chat_template}
        return json_response(config | {"vocab_size": facts.vocabulary_size, "max_model_len": facts.context})

    return routes


def _tokenized(parts: Parts, body: TokenizeRequest) -> dict[str, Any]:
    text, facts = parts.loaded()
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise ApiError(400, "one of content, prompt and messages is needed", param="prompt")
    if body.content is not None:
        ids = text.tokenizer.encode(body.content, body.parse_special, body.add_special)
        return {"tokens": [_piece(text, i) for i in ids] if body.with_pieces else ids}
    if body.prompt is not None:
        ids = text.tokenizer.encode(body.prompt, True, body.add_special_tokens)
    else:
        ids = list(text.chat(conversation_of(body, text)).token_ids)
    answer: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": facts.context}
    if body.return_token_strs:
        answer["token_strs"] = [text.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
    return answer


def _piece(text: TextSide, token_id: int) -> dict[str, Any]:
    held = text.tokenizer.token_bytes(token_id)
    try:
        return {"id": token_id, "piece": held.decode("utf-8")}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(held)}
