"""Conversations as the OpenAI chat API states them, turned into what templates read.

Knows roles, parts of content and calls in messages; images and sounds are refused, since dropping them would change
what was asked.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strata.server.asking import Fields
from strata.server.errors import ApiError
from strata.server.text_side import Conversation, TextSide
from strata.server.wire.openai_tools import calls_of

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class ChatFields(Fields):
    """The fields of a request that make its prompt."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


def conversation_of(body: ChatFields, text: TextSide) -> Conversation:
    """The conversation that a body states. ApiError 400 names what cannot be used."""
    if not body.messages:
        raise ApiError(400, "messages is empty: give at least one", param="messages")
    if body.continue_final_message and body.add_generation_prompt:
        raise ApiError(
            400,
            "continue_final_message and add_generation_prompt contradict each other: set one",
            param="continue_final_message",
        )
    tools, choice = body.tools, body.tool_choice
    if tools is None and body.functions is not None:  # the API's older way
        tools = [{"type": "function", "function": function} for function in body.functions]
        named = body.function_call
        choice = {"type": "function", "function": named} if isinstance(named, dict) else named
    calls, notices = calls_of(tools, choice, body.parallel_tool_calls)
    return Conversation(
        messages=messages_of(body.messages, text),
        calls=calls,
        variables=thinking_variables(body.reasoning_effort, "reasoning_effort") | dict(body.chat_template_kwargs or {}),
        continues_last=bool(body.continue_final_message),
        asks_for_reply=body.add_generation_prompt is not False,
        notices=notices,
    )


def thinking_variables(effort: Any, param: str) -> dict[str, Any]:
    """What templates read of a wish for more or less reasoning. ApiError 400, naming `param`, for an unknown one."""
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise ApiError(400, f"{param} is {str(effort)[:100]!r}; {', '.join(_EFFORTS)} work", param=param)
    if effort == "none":
        return {"enable_thinking": False, "thinking": False, "reasoning_effort": effort}
    return {"enable_thinking": True, "thinking": True, "reasoning_effort": effort}


def messages_of(messages: Sequence[Mapping[str, Any]], text: TextSide) -> list[dict[str, Any]]:
    """Every message as templates read it."""
    return [_message(message, f"messages[{index}]", text) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], place: str, text: TextSide) -> dict[str, Any]:
    given = message.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise ApiError(400, f"{place}.role is {given!r}; {', '.join(_ROLES)} work", param=f"{place}.role")
    calls = _calls(message, place, text) if role == "assistant" else []
    content = message.get("content")
    if content is None and role != "assistant":
        raise ApiError(400, f"{place}.content is missing", param=f"{place}.content")
    made: dict[str, Any] = {"role": role, "content": text_of(content, f"{place}.content")}
    if calls:
        made["tool_calls"] = calls
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if role == "assistant" and isinstance(reasoning, str):
        made["reasoning_content"] = reasoning
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            made[name] = message[name]
    return made


def text_of(content: Any, place: str) -> str:
    """The text of a content: a string, or parts of text. ApiError 400 for parts of other kinds."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{place} must be a text or a list of parts", param=place)
    return "\n".join(_part_text(part, f"{place}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise ApiError(400, f"{place} is of type {kind!r}; this model reads text only", param=place)
    held = part.get(field)
    if not isinstance(held, str):
        raise ApiError(400, f"{place}.{field} must be a text", param=place)
    return held


def _calls(message: Mapping[str, Any], place: str, text: TextSide) -> list[dict[str, Any]]:
    """The calls of an earlier reply."""
    given = message.get("tool_calls")
    if given is None and message.get("function_call") is not None:
        given = [{"type": "function", "function": message["function_call"]}]
    if given is None:
        return []
    where = f"{place}.tool_calls"
    if not isinstance(given, list):
        raise ApiError(400, f"{where} must be a list", param=where)
    return [_call(call, f"{where}[{index}]", text) for index, call in enumerate(given)]


def _call(call: Any, place: str, text: TextSide) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise ApiError(400, f"{place} must be an object with function: {{name, arguments}}", param=place)
    return call_of(call.get("id"), name, function.get("arguments"), text)


def call_of(call_id: Any, name: str, arguments: Any, text: TextSide) -> dict[str, Any]:
    """A call as templates read it: arguments as text where the template takes text, otherwise as an object."""
    if isinstance(arguments, str) and not text.takes_arguments_as_text:
        try:
            read = json.loads(arguments) if arguments else {}
        except ValueError:
            read = None
        arguments = read if isinstance(read, dict) else {"arguments": arguments}
    elif not isinstance(arguments, str) and text.takes_arguments_as_text:
        arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
    made = {"type": "function", "function": {"name": name, "arguments": arguments if arguments is not None else {}}}
    return made | ({"id": call_id} if isinstance(call_id, str) else {})
