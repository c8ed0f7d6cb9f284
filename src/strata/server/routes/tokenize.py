"""Text to token ids and back, and conversations to prompts, in the words of llama.cpp and of vLLM.

Both call their route /tokenize: `content` is llama.cpp's field, `prompt` and `messages` are vLLM's.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from strata.server.asking import Fields, check_token_ids
from strata.server.errors import ApiError
from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.responding import json_response
from strata.server.text_side import TextSide
from strata.server.wire.events import to_json
from strata.server.wire.openai_messages import ChatFields, conversation_of

MOST_BYTES = 2 << 20  # of a text; 2 MiB are half a million tokens of English
_ENTRIES_A_PIECE = 10_000


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
        answer = await asyncio.to_thread(_tokenized, parts, body)
        return Response(answer, media_type="application/json")

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids, control tokens included."""
        text, facts = parts.loaded()
        check_token_ids(body.tokens, facts.vocabulary_size, "tokens")
        decoded = await asyncio.to_thread(text.tokenizer.decode, body.tokens, show_special=True)
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
        named = config.get("eos_token")
        literal = named.get("content") if isinstance(named, dict) else named
        end = text.tokenizer.token_id(literal) if isinstance(literal, str) else None
        end = end if end is not None else ends[0] if ends else None
        config |= {"eos_token_id": end, "chat_template": text.files.chat_template}
        return json_response(config | {"vocab_size": facts.vocabulary_size, "max_model_len": facts.context})

    return routes


def _tokenized(parts: Parts, body: TokenizeRequest) -> bytes:
    """The answer's JSON: made here, in a thread and in pieces, since there may be a million tokens."""
    text, facts = parts.loaded()
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise ApiError(400, "one of content, prompt and messages is needed", param="prompt")
    if body.content is not None:
        _check_size(body.content, "content")
        ids = text.tokenizer.encode(body.content, body.parse_special, body.add_special)
        return _with_list("tokens", [_piece(text, i) for i in ids] if body.with_pieces else ids, {})
    if body.prompt is not None:
        _check_size(body.prompt, "prompt")
        ids = text.tokenizer.encode(body.prompt, True, body.add_special_tokens)
    else:
        ids = list(text.token_ids(conversation_of(body, text)))
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": facts.context}
    if body.return_token_strs:
        answer["token_strs"] = [text.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
    return _with_list("tokens", ids, answer)


def _check_size(text: str, param: str) -> None:
    size = len(text.encode())
    if size > MOST_BYTES:
        raise ApiError(
            400, f"{param} has {size:,} bytes; at most {MOST_BYTES:,} become tokens in one request", param=param
        )


def _with_list(name: str, entries: Sequence[Any], others: Mapping[str, Any]) -> bytes:
    """`{name: entries, **others}` as JSON. No other thread runs while one call writes JSON: so in short calls."""
    pieces = [to_json(entries[at : at + _ENTRIES_A_PIECE])[1:-1] for at in range(0, len(entries), _ENTRIES_A_PIECE)]
    rest = to_json(dict(others))[1:-1]
    return b'{"%s":[%s]%s}' % (name.encode(), b",".join(pieces), b"," + rest if rest else b"")


def _piece(text: TextSide, token_id: int) -> dict[str, Any]:
    held = text.tokenizer.token_bytes(token_id)
    try:
        return {"id": token_id, "piece": held.decode("utf-8")}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(held)}
