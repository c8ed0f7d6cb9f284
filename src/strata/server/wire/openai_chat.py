"""Chat completions in the words of the OpenAI API: the request's fields, the whole answer, the chunks of a stream.

Knows that API's shapes; not where a reply comes from.
"""

import time
from collections.abc import Sequence
from typing import Any

from strata.server.asking import SamplingFields, one_of
from strata.server.errors import ApiError, openai_error
from strata.server.replies import Choice, Over, Reading, ReplyPart, Said
from strata.server.wire.events import DONE, data_event, new_id, openai_usage, timings
from strata.server.wire.logprobs import token_json
from strata.server.wire.openai_messages import ChatFields
from strata.text.reply_events import (
    ContentText,
    ReasoningText,
    ReplyEvent,
    TokenShown,
    ToolArguments,
    ToolCallBegun,
)
from strata.text.tokenizer import Tokenizer
from strata.types import Usage

MOST_TOP_LOGPROBS = 20


class ChatRequest(ChatFields, SamplingFields):
    """POST /v1/chat/completions. Fields that are not listed are ignored."""

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    return_token_ids: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None

    def check(self) -> None:
        """ApiError 400 for what would change the reply and cannot be had here."""
        wanted = [str(kind) for kind in self.other("modalities") or () if kind != "text"]
        if wanted:
            raise ApiError(400, f"modalities holds {', '.join(wanted)}; this model writes text only", "modalities")

    @property
    def wanted_tokens(self) -> int | None:
        """Most tokens of the reply, -1: as many as fit. ApiError 400 if the field's names contradict each other."""
        wanted: int | None = one_of(self, "max_completion_tokens", "max_tokens", "n_predict")
        return wanted

    @property
    def wanted_logprobs(self) -> int | None:
        """How many likely tokens to report with each token; None: no log-probabilities."""
        top = self.top_logprobs
        if top is not None and not 0 <= top <= MOST_TOP_LOGPROBS:
            raise ApiError(400, f"top_logprobs is {top}; it must be from 0 to {MOST_TOP_LOGPROBS}", "top_logprobs")
        if top and self.logprobs is False:
            raise ApiError(400, f"top_logprobs is {top} and logprobs is false: set logprobs to true", "top_logprobs")
        return (top or 0) if self.logprobs or top else None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with usage."""
        return bool((self.stream_options or {}).get("include_usage"))


class ChatWriter:
    """Writes one answer to one request; stateful for streams."""

    def __init__(self, body: ChatRequest, model: str, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._body = body
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._top = body.wanted_logprobs
        self._head = {"id": new_id("chatcmpl-"), "object": "chat.completion.chunk", "created": int(time.time())}
        self._head |= {"model": model, "system_fingerprint": None}
        self._shows_reasoning = body.include_reasoning is not False
        self._has_begun: set[int] = set()
        self._overs: dict[int, Over] = {}

    def feed(self, part: ReplyPart) -> bytes:
        """The events of a stream that tell a part."""
        if isinstance(part, Reading):
            return self._begin(part.choice) + self._progress(part)
        if isinstance(part, Said):
            return self._begin(part.choice, part.usage) + self._said(part)
        if isinstance(part, Over):
            self._overs[part.choice] = part
            return self._begin(part.choice, part.usage) + self._chunk(part.choice, {}, part.reason, self._extras(part))
        return b""

    def end(self) -> bytes:
        """What follows the last part."""
        usage = b""
        if self._body.wants_usage:
            usage = data_event(self._head | {"choices": [], "usage": self._usage(list(self._overs.values()))})
        return usage + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error behind the first byte."""
        return data_event(openai_error(error))

    def answer(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The whole answer."""
        overs = [choice.over for choice in choices if choice.over is not None]
        answer: dict[str, Any] = dict(self._head, object="chat.completion")
        answer["choices"] = [self._choice(choice, over) for choice, over in zip(choices, overs, strict=True)]
        answer["usage"] = self._usage(overs)
        answer["timings"] = timings(overs[0].usage)
        notices = [notice for over in overs for notice in over.notices]
        if notices:
            answer["warnings"] = list(dict.fromkeys(notices))
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = list(self._prompt)
        return answer

    def _choice(self, choice: Choice, over: Over) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
        if choice.reasoning and self._shows_reasoning:
            message |= {"reasoning": choice.reasoning, "reasoning_content": choice.reasoning}
        if choice.calls:
            message["content"] = choice.content or None
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in choice.calls
            ]
        made: dict[str, Any] = {"index": over.choice, "message": message, "finish_reason": over.reason}
        made["logprobs"] = None if self._top is None else self._logprobs(choice.tokens)
        made["stop_reason"] = over.stop
        if self._body.return_token_ids:
            made["token_ids"] = choice.token_ids
        return made

    def _usage(self, overs: Sequence[Over]) -> dict[str, Any]:
        return openai_usage([over.usage for over in overs], sum(over.reasoning_tokens for over in overs))

    def _extras(self, over: Over) -> dict[str, Any]:
        extras: dict[str, Any] = {"timings": timings(over.usage)}
        if over.notices:
            extras["warnings"] = list(over.notices)
        return extras

    def _begin(self, choice: int, usage: Usage | None = None) -> bytes:
        if choice in self._has_begun:
            return b""
        self._has_begun.add(choice)
        extras = {"prompt_token_ids": list(self._prompt)} if self._body.return_token_ids else {}
        return self._chunk(choice, {"role": "assistant", "content": ""}, None, extras)

    def _progress(self, part: Reading) -> bytes:
        if not self._body.return_progress:
            return b""
        told = part.progress
        progress = {"total": told.total, "cache": told.cached, "processed": told.done}
        return self._chunk(part.choice, {}, None, {"prompt_progress": progress})

    def _said(self, part: Said) -> bytes:
        """One chunk for each change of kind; log-probabilities and token ids go with the last one."""
        deltas = _deltas(part.events, self._shows_reasoning)
        shown = [event for event in part.events if isinstance(event, TokenShown)]
        extras: dict[str, Any] = {"token_ids": list(part.token_ids)} if self._body.return_token_ids else {}
        if self._body.timings_per_token:
            extras["timings"] = timings(part.usage)
        if not deltas and (shown or self._body.return_token_ids):
            deltas = [{}]
        chunks = [self._chunk(part.choice, delta, None, {}) for delta in deltas[:-1]]
        if deltas:
            logprobs = self._logprobs(shown) if self._top is not None else None
            chunks.append(self._chunk(part.choice, deltas[-1], None, extras, logprobs))
        return b"".join(chunks)

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        reason: str | None,
        extras: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        made: dict[str, Any] = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if reason is not None:
            made["stop_reason"] = self._overs[choice].stop
        if "token_ids" in extras:
            made["token_ids"] = extras.pop("token_ids")
        usage = {"usage": None} if self._body.wants_usage else {}
        return data_event(self._head | {"choices": [made]} | usage | extras)

    def _logprobs(self, tokens: Sequence[TokenShown]) -> dict[str, Any]:
        shown = [token for token in tokens if token.is_content]
        content = [token_json(self._tokenizer, token.draw, token.text, self._top or 0) for token in shown]
        return {"content": content, "refusal": None}


def _deltas(events: Sequence[ReplyEvent], shows_reasoning: bool) -> list[dict[str, Any]]:
    """The events as deltas; neighbours of one kind are one."""
    deltas: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, ContentText):
            if deltas and "content" in deltas[-1]:
                deltas[-1]["content"] += event.text
            else:
                deltas.append({"content": event.text})
        elif isinstance(event, ReasoningText) and shows_reasoning:
            if deltas and "reasoning" in deltas[-1]:
                joined = deltas[-1]["reasoning"] + event.text
                deltas[-1] = {"reasoning": joined, "reasoning_content": joined}
            else:
                deltas.append({"reasoning": event.text, "reasoning_content": event.text})
        elif isinstance(event, ToolCallBegun):
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.index, "id": event.call_id, "type": "function", "function": function}
            deltas.append({"tool_calls": [call]})
        elif isinstance(event, ToolArguments):
            deltas.append({"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]})
    return deltas
