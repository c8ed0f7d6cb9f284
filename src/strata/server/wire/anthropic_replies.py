"""Replies in the words of the Anthropic API: the whole message, and the events of a stream in their order.

Knows that API's shapes; not where a reply comes from.
"""

import json
from collections.abc import Sequence
from typing import Any

from strata.server.errors import ApiError, anthropic_error
from strata.server.replies import Choice, Over, Reading, ReplyPart, Said
from strata.server.wire.events import named_event, new_id
from strata.text.reply_events import (
    ContentText,
    ReasoningText,
    ReplyEvent,
    ToolArguments,
    ToolCallBegun,
)
from strata.types import Usage

PING = named_event("ping", {"type": "ping"})
_SIGNATURE = "strata"  # local reasoning needs none; clients give it back and nobody looks at it


class MessageWriter:
    """Writes one answer; stateful for streams."""

    def __init__(self, model: str, prompt_tokens: int, context: int, request_id: str) -> None:
        self._head: dict[str, Any] = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}
        self._prompt_tokens = prompt_tokens
        self._context = context
        self._request_id = request_id
        self._has_begun = False
        self._index = -1  # of the block that is open or was last
        self._open: str | None = None  # kind of the open block

    def feed(self, part: ReplyPart) -> bytes:
        """The events of a stream that tell a part."""
        if isinstance(part, Reading):
            return self._begin(part.progress.cached)
        if isinstance(part, Said):
            return self._begin(part.usage.cached_tokens) + b"".join(self._event(event) for event in part.events)
        if isinstance(part, Over):
            told = {"stop_reason": self._stop_reason(part), "stop_sequence": part.stop, "container": None}
            delta: dict[str, Any] = {"type": "message_delta", "delta": told, "usage": _usage(part)}
            if part.notices:
                delta["warnings"] = list(part.notices)
            return self._begin(part.usage.cached_tokens) + self._close() + named_event("message_delta", delta)
        return b""

    def end(self) -> bytes:
        """What follows the last part."""
        return named_event("message_stop", {"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        """An error behind the first byte."""
        return named_event("error", anthropic_error(error, self._request_id))

    def answer(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The whole message."""
        choice = choices[0]
        assert choice.over is not None
        blocks: list[dict[str, Any]] = []
        if choice.reasoning:
            blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": _SIGNATURE})
        if choice.content or not (choice.calls or choice.reasoning):
            blocks.append({"type": "text", "text": choice.content, "citations": None})
        for call in choice.calls:
            given: dict[str, Any] = {"type": "tool_use", "id": _tool_id(call.call_id), "name": call.name}
            blocks.append(given | {"input": _input(call.arguments)})
        message: dict[str, Any] = dict(self._head) | {
            "content": blocks,
            "stop_reason": self._stop_reason(choice.over),
            "stop_sequence": choice.over.stop,
            "usage": _usage(choice.over),
        }
        return message | ({"warnings": list(choice.over.notices)} if choice.over.notices else {})

    def _begin(self, cached: int) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        usage = _tokens(self._prompt_tokens, cached, 0)
        message = dict(self._head) | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return named_event("message_start", {"type": "message_start", "message": message}) + PING

    def _event(self, event: ReplyEvent) -> bytes:
        if isinstance(event, ContentText):
            delta = {"type": "text_delta", "text": event.text}
            return self._in("text", {"type": "text", "text": ""}) + self._delta(delta)
        if isinstance(event, ReasoningText):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            return self._in("thinking", block) + self._delta({"type": "thinking_delta", "thinking": event.text})
        if isinstance(event, ToolCallBegun):
            call: dict[str, Any] = {"type": "tool_use", "id": _tool_id(event.call_id), "name": event.name, "input": {}}
            return self._close() + self._in("tool_use", call)
        if isinstance(event, ToolArguments):
            return self._delta({"type": "input_json_delta", "partial_json": event.text})
        return b""

    def _in(self, kind: str, block: dict[str, Any]) -> bytes:
        """Make sure that a block of this kind is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        self._index += 1
        started = {"type": "content_block_start", "index": self._index, "content_block": block}
        return closed + named_event("content_block_start", started)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        told = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return named_event("content_block_delta", told)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        self._open = None
        return signed + named_event("content_block_stop", {"type": "content_block_stop", "index": self._index})

    def _stop_reason(self, over: Over) -> str:
        if over.reason == "length":
            used = over.usage.prompt_tokens + over.usage.completion_tokens
            return "model_context_window_exceeded" if used >= self._context else "max_tokens"
        if over.reason == "tool_calls":
            return "tool_use"
        return "stop_sequence" if over.stop is not None else "end_turn"


def _usage(over: Over) -> dict[str, Any]:
    usage: Usage = over.usage
    details = {"output_tokens_details": {"thinking_tokens": over.reasoning_tokens}}
    return _tokens(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) | details


def _tokens(prompt: int, cached: int, output: int) -> dict[str, Any]:
    """In this API the tokens that were cached are not part of `input_tokens`."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _tool_id(call_id: str) -> str:
    return "toolu_" + call_id.removeprefix("call_")


def _input(arguments: str) -> Any:
    """The arguments as an object; as they are where the model wrote no object."""
    try:
        value = json.loads(arguments)
    except ValueError:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}
