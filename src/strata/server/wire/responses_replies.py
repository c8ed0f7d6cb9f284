"""Replies in the words of the OpenAI Responses API: the whole response, and the events of a stream, numbered.

Knows that API's shapes; not where a reply comes from.
"""

import time
from collections.abc import Sequence
from typing import Any

from strata.sampling.options import SamplingOptions
from strata.server.errors import ApiError
from strata.server.replies import Choice, Over, Reading, ReplyPart, Said
from strata.server.wire.events import named_event, new_id
from strata.server.wire.logprobs import token_json
from strata.server.wire.responses_input import ResponsesRequest
from strata.text.reply_events import (
    ContentText,
    ReasoningText,
    ReplyEvent,
    TokenShown,
    ToolArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from strata.text.tokenizer import Tokenizer


class ResponseWriter:
    """Writes one answer; stateful for streams."""

    def __init__(self, body: ResponsesRequest, model: str, tokenizer: Tokenizer, options: SamplingOptions) -> None:
        self._body = body
        self._options = options
        self._tokenizer = tokenizer
        self._top = body.wanted_logprobs
        self._head = {"id": new_id("resp_"), "object": "response", "created_at": int(time.time()), "model": model}
        self._sequence = 0
        self._has_begun = False
        self._items: list[dict[str, Any]] = []
        self._is_open = False  # the last item is still being written
        self._over: Over | None = None

    def feed(self, part: ReplyPart) -> bytes:
        """The events of a stream that tell a part."""
        if isinstance(part, Reading):
            return self._begin()
        if isinstance(part, Said):
            told = [self._event(event) for event in part.events]
            return self._begin() + b"".join(told)
        if isinstance(part, Over):
            self._over = part
            return self._begin() + self._close(is_complete=part.reason != "length")
        return b""

    def end(self) -> bytes:
        """The last event: the whole response."""
        status = _status(self._over)
        return self._send(f"response.{status}", {"response": self._response(status, self._items, self._over)})

    def failure(self, error: ApiError) -> bytes:
        """An error behind the first byte."""
        told = {"code": error.code or "server_error", "message": error.message}
        response = self._response("failed", self._items, None) | {"error": told}
        return self._send("response.failed", {"response": response})

    def answer(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The whole response."""
        choice = choices[0]
        items: list[dict[str, Any]] = []
        if choice.reasoning:
            items.append(_reasoning_item(choice.reasoning, "completed"))
        status = "completed" if choice.over is None or choice.over.reason != "length" else "incomplete"
        if choice.content or not (choice.calls or choice.reasoning):
            items.append(_message_item(choice.content, status) | {"id": new_id("msg_")})
            items[-1]["content"][0]["logprobs"] = self._logprobs(choice.tokens)
        for call in choice.calls:
            items.append(_call_item(call.call_id, call.name, call.arguments, "completed"))
        return self._response(_status(choice.over), items, choice.over)

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        response = self._response("in_progress", [], None)
        created = self._send("response.created", {"response": response})
        return created + self._send("response.in_progress", {"response": response})

    def _event(self, event: ReplyEvent) -> bytes:
        if isinstance(event, ContentText):
            opened = self._in("message", lambda: _message_item("", "in_progress"))
            self._items[-1]["content"][0]["text"] += event.text
            return opened + self._on_part("response.output_text.delta", {"delta": event.text, "logprobs": []})
        if isinstance(event, ReasoningText):
            opened = self._in("reasoning", lambda: _reasoning_item("", "in_progress"))
            self._items[-1]["content"][0]["text"] += event.text
            return opened + self._on_part("response.reasoning_text.delta", {"delta": event.text})
        if isinstance(event, ToolCallBegun):
            closed = self._close()
            return closed + self._in("function_call", lambda: _call_item(event.call_id, event.name, "", "in_progress"))
        if isinstance(event, ToolArguments):
            self._items[-1]["arguments"] += event.text
            return self._on_item("response.function_call_arguments.delta", {"delta": event.text})
        if isinstance(event, ToolCallEnded):
            return self._close(event.is_complete)
        if isinstance(event, TokenShown) and self._top is not None and self._is_open and event.is_content:
            self._items[-1].get("content", [{}])[0].setdefault("logprobs", []).extend(self._logprobs([event]))
        return b""

    def _in(self, kind: str, make: Any) -> bytes:
        """Make sure that an item of this kind is open."""
        if self._is_open and self._items[-1]["type"] == kind:
            return b""
        closed = self._close()
        self._items.append(make())
        self._is_open = True
        item = self._items[-1]
        shown = item | ({"content": []} if "content" in item else {})
        added = self._send("response.output_item.added", {"output_index": len(self._items) - 1, "item": shown})
        if "content" in item:
            added += self._on_part("response.content_part.added", {"part": dict(item["content"][0])})
        return closed + added

    def _close(self, is_complete: bool = True) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        item = self._items[-1]
        item["status"] = "completed" if is_complete else "incomplete"
        told = b""
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            told = self._on_item("response.function_call_arguments.done", done)
        else:
            part = item["content"][0]
            if item["type"] == "message":
                done = {"text": part["text"], "logprobs": part["logprobs"]}
                told = self._on_part("response.output_text.done", done)
            else:
                told = self._on_part("response.reasoning_text.done", {"text": part["text"]})
            told += self._on_part("response.content_part.done", {"part": part})
        return told + self._send("response.output_item.done", {"output_index": len(self._items) - 1, "item": item})

    def _on_part(self, kind: str, values: dict[str, Any]) -> bytes:
        return self._on_item(kind, {"content_index": 0} | values)

    def _on_item(self, kind: str, values: dict[str, Any]) -> bytes:
        return self._send(kind, {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1} | values)

    def _send(self, kind: str, values: dict[str, Any]) -> bytes:
        told = {"type": kind, "sequence_number": self._sequence} | values
        self._sequence += 1
        return named_event(kind, told)

    def _logprobs(self, tokens: Sequence[TokenShown]) -> list[dict[str, Any]]:
        if self._top is None:
            return []
        shown = [token for token in tokens if token.is_content]
        return [token_json(self._tokenizer, token.draw, token.text, self._top) for token in shown]

    def _response(self, status: str, items: Sequence[dict[str, Any]], over: Over | None) -> dict[str, Any]:
        body = self._body
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response: dict[str, Any] = dict(self._head) | {
            "status": status,
            "completed_at": int(time.time()) if status in ("completed", "incomplete") else None,
            "output": list(items),
            "error": None,
            "incomplete_details": reason,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": body.reasoning or {"effort": None, "summary": None},
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "temperature": self._options.temperature,
            "top_p": self._options.top_p,
            "presence_penalty": self._options.presence_penalty,
            "frequency_penalty": self._options.frequency_penalty,
            "top_logprobs": body.top_logprobs or 0,
            "truncation": "disabled",
            "background": False,
            "service_tier": "default",
            "store": False,
            "usage": None if over is None else _usage(over),
        }
        if over is not None and over.notices:
            response["warnings"] = list(over.notices)
        return response


def _status(over: Over | None) -> str:
    return "incomplete" if over is not None and over.reason == "length" else "completed"


def _message_item(text: str, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": new_id("msg_"), "type": "message", "role": "assistant", "status": status, "content": [part]}


def _reasoning_item(text: str, status: str) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {"id": new_id("rs_"), "type": "reasoning", "status": status, "summary": [], "content": [part]}


def _call_item(call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    made = {"id": new_id("fc_"), "type": "function_call", "status": status, "call_id": call_id, "name": name}
    return made | {"arguments": arguments}


def _usage(over: Over) -> dict[str, Any]:
    usage = over.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": over.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
