"""Requests of the OpenAI Responses API, turned into what templates read.

Knows that API's items; nothing is stored, so whatever refers to an earlier answer is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from strata.sampling.grammar_spec import GrammarSpec
from strata.server.asking import SamplingFields
from strata.server.errors import ApiError
from strata.server.grammar_fields import response_format
from strata.server.text_side import Conversation, TextSide
from strata.server.wire.openai_messages import call_of, text_of, thinking_variables
from strata.server.wire.openai_tools import calls_of

MOST_TOP_LOGPROBS = 20
_STORED = {
    "previous_response_id": "send the whole conversation in input",
    "conversation": "send the whole conversation in input",
    "prompt": "send the prompt's text in instructions and input",
}
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_KNOWN_ITEMS = ("message", *_CALLS, *_OUTPUTS, "reasoning", "item_reference")
# What a response can hold on top, as the API lists it; of these only log-probabilities exist here.
_INCLUDABLE = (
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)


class ResponsesRequest(SamplingFields):
    """POST /v1/responses. Fields that are not listed are ignored."""

    called: ClassVar[Mapping[str, str]] = {"max_tokens": "max_output_tokens"}

    input: str | list[dict[str, Any]] | None = None
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    previous_response_id: str | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None

    def check(self) -> None:
        """ApiError 400 for what this server, which stores nothing, cannot do."""
        for name, instead in _STORED.items():
            if self.other(name) is not None:
                raise ApiError(400, f"{name} is given; this server is stateless: {instead}", param=name)
        unknown = next((wanted for wanted in self.include or () if wanted not in _INCLUDABLE), None)
        if unknown is not None:
            raise ApiError(400, f"include holds {unknown[:100]!r}; {', '.join(_INCLUDABLE)} work", param="include")
        if self.background:
            raise ApiError(400, "background is true; this server is stateless: leave it out", param="background")

    @property
    def wanted_logprobs(self) -> int | None:
        """How many likely tokens to report with each token; None: no log-probabilities."""
        top = self.top_logprobs or 0
        if not 0 <= top <= MOST_TOP_LOGPROBS:
            raise ApiError(400, f"top_logprobs is {top}; it must be from 0 to {MOST_TOP_LOGPROBS}", "top_logprobs")
        return top if top or "message.output_text.logprobs" in (self.include or ()) else None

    @property
    def grammar(self) -> GrammarSpec | None:
        """What the answer's text must be."""
        form = (self.text or {}).get("format")
        return None if form is None else response_format("text.format", form)


def conversation_of(body: ResponsesRequest, text: TextSide) -> Conversation:
    """The conversation that a body states. ApiError 400 names what cannot be used."""
    calls, notices = calls_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    effort = (body.reasoning or {}).get("effort")
    return Conversation(
        messages=_messages(body, text),
        calls=calls,
        variables=thinking_variables(effort, "reasoning.effort"),
        notices=notices + _left_out(body),
        param="input",
    )


def _messages(body: ResponsesRequest, text: TextSide) -> list[dict[str, Any]]:
    """The items as messages; what the assistant did in one turn is one message."""
    made: list[dict[str, Any]] = []
    if body.instructions:
        made.append({"role": "system", "content": body.instructions})
    if body.input is None:
        raise ApiError(400, "input is missing: give a text or a list of items", param="input")
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for index, item in enumerate(items):
        message = _item(item, f"input[{index}]", text)
        if message is not None:
            _append(made, message)
    if items and not made:
        raise ApiError(400, "input holds no message: give at least one", param="input")
    if all(message["role"] == "system" for message in made):
        made.append({"role": "user", "content": ""})  # Codex asks with an empty list whether a server answers
    return made


def _left_out(body: ResponsesRequest) -> tuple[str, ...]:
    """A notice for every item that has no place in a prompt."""
    items = body.input if isinstance(body.input, list) else []
    return tuple(
        f"input[{index}] of type {str(item.get('type'))[:50]!r} is left out: this server cannot use it"
        for index, item in enumerate(items)
        if item.get("type", "message") not in _KNOWN_ITEMS
    )


def _append(made: list[dict[str, Any]], message: dict[str, Any]) -> None:
    last = made[-1] if made else None
    if last is None or last["role"] != message["role"] or message["role"] not in ("assistant", "system"):
        made.append(message)
        return
    joined = [part for part in (last["content"], message["content"]) if part]
    last["content"] = "\n\n".join(joined)
    if message.get("reasoning_content"):
        last["reasoning_content"] = "\n".join(
            filter(None, [last.get("reasoning_content"), message["reasoning_content"]])
        )
    if "tool_calls" in message:
        last["tool_calls"] = last.get("tool_calls", []) + message["tool_calls"]


def _item(item: Mapping[str, Any], place: str, text: TextSide) -> dict[str, Any] | None:
    """An item as a message; None for traces of tools that only a provider's own servers run."""
    kind = item.get("type", "message")
    if kind == "message":
        return _message(item, place)
    if kind in _CALLS:
        name = item.get("name")
        if not isinstance(name, str):
            raise ApiError(400, f"{place}.name must be a text", param=f"{place}.name")
        arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
        return {"role": "assistant", "content": "", "tool_calls": [call_of(item.get("call_id"), name, arguments, text)]}
    if kind in _OUTPUTS:
        output = text_of(item.get("output"), f"{place}.output")
        return {"role": "tool", "content": output, "tool_call_id": str(item.get("call_id"))}
    if kind == "reasoning":
        return _reasoning(item)
    if kind == "item_reference":
        raise ApiError(400, f"{place} refers to an earlier item; this server is stateless: send it whole", param=place)
    return None


def _message(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    roles = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
    given = item.get("role")
    role = roles.get(given) if isinstance(given, str) else None
    if role is None:
        raise ApiError(400, f"{place}.role is {given!r}; {', '.join(roles)} work", param=f"{place}.role")
    return {"role": role, "content": text_of(item.get("content"), f"{place}.content")}


def _reasoning(item: Mapping[str, Any]) -> dict[str, Any] | None:
    parts: Sequence[Any] = item.get("content") or item.get("summary") or ()
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return {"role": "assistant", "content": "", "reasoning_content": "\n".join(texts)} if texts else None
