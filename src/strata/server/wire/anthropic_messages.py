"""Conversations as the Anthropic API states them, turned into what templates read.

Knows that API's blocks, tools and wishes; images are refused, since dropping them would change what was asked.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from strata.sampling.grammar_spec import GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.server.asking import Fields, made_options
from strata.server.errors import ApiError
from strata.server.grammar_fields import json_schema
from strata.server.text_side import Conversation, TextSide
from strata.server.wire.openai_messages import call_of, thinking_variables
from strata.server.wire.openai_tools import calls_of

# Claude Code puts a line that changes with every request in front of its system prompt; with it, no two turns of a
# conversation would share a beginning, and each would be read from its first token on.
_BILLING = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*")
_LEFT_OUT_BLOCKS = ("redacted_thinking", "server_tool_use", "web_search_tool_result", "container_upload")


class PromptRequest(Fields):
    """The fields that make a prompt; POST /v1/messages/count_tokens takes these alone."""

    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesRequest(PromptRequest):
    """POST /v1/messages. Fields that are not listed are ignored."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def options(self, defaults: Mapping[str, Any]) -> SamplingOptions:
        """As the engine takes them; `defaults` for those that are not named."""
        values = {
            "max_tokens": self.max_tokens,
            "stop": tuple(self.stop_sequences or ()),
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }
        return made_options(defaults, values)

    @property
    def grammar(self) -> GrammarSpec | None:
        """What the answer's text must be."""
        form = (self.output_config or {}).get("format") or self.other("output_format")
        if form is None:
            return None
        if not isinstance(form, Mapping) or form.get("type") != "json_schema":
            raise ApiError(400, "output_config.format must be of type json_schema", param="output_config.format")
        return json_schema("output_config.format.schema", form.get("schema"))


def conversation_of(body: PromptRequest, text: TextSide) -> Conversation:
    """The conversation that a body states. ApiError 400 names what cannot be used."""
    if not body.messages:
        raise ApiError(400, "messages is empty: give at least one", param="messages")
    choice = body.tool_choice or {}
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    calls, notices = calls_of(tools, _choice(choice), choice.get("disable_parallel_tool_use") is not True)
    messages = [*_system(body.system)]
    for index, message in enumerate(body.messages):
        messages += _messages(message, f"messages[{index}]", text)
    last = messages[-1]
    return Conversation(
        messages=messages,
        calls=calls,
        variables=_thinking(body),
        continues_last=last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last,
        notices=notices + _unheld_budget(body),
    )


def _system(system: str | Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    if system is None:
        return []
    blocks = [system] if isinstance(system, str) else [_text(block, f"system[{i}]") for i, block in enumerate(system)]
    kept = [text for block in blocks if (text := _BILLING.sub("", block))]
    return [{"role": "system", "content": "\n".join(kept)}] if kept else []


def _thinking(body: PromptRequest) -> dict[str, Any]:
    effort = (body.output_config or {}).get("effort")
    kind = (body.thinking or {}).get("type")
    if kind not in (None, "enabled", "adaptive", "disabled"):
        raise ApiError(400, f"thinking.type is {kind!r}; enabled, adaptive and disabled work", param="thinking.type")
    if kind == "disabled":
        return thinking_variables("none", "thinking.type")
    wished = thinking_variables(effort, "output_config.effort")
    return wished | ({"enable_thinking": True, "thinking": True} if kind is not None else {})


def _unheld_budget(body: PromptRequest) -> tuple[str, ...]:
    """A notice, not a refusal: the API wants a budget with every `enabled`, so clients cannot leave it out."""
    if (body.thinking or {}).get("budget_tokens") is None:
        return ()
    return ("thinking.budget_tokens is not held to: this server has no thinking budget",)


def _tool(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """In the OpenAI API's words, which `calls_of` knows."""
    kind = tool.get("type")
    if kind == "function" and "input_schema" not in tool:
        raise ApiError(
            400,
            f"{place} is a tool as OpenAI's API has it; here it is {{name, description, input_schema}}",
            param=place,
        )
    if kind not in (None, "custom", "function"):
        return {"type": kind}
    function = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    schema = tool.get("input_schema")
    if not isinstance(schema, Mapping):
        raise ApiError(400, f"{place}.input_schema must be a JSON schema, an object", param=f"{place}.input_schema")
    return {"type": "function", "function": function | {"parameters": schema}}


def _choice(choice: Mapping[str, Any]) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind in (None, "auto", "any", "none"):
        return kind
    raise ApiError(400, f"tool_choice.type is {kind!r}; auto, any, tool and none work", param="tool_choice.type")


def _messages(message: Mapping[str, Any], place: str, text: TextSide) -> list[dict[str, Any]]:
    """One message as one or several: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise ApiError(400, f"{place}.role is {role!r}; user, assistant and system work", param=f"{place}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise ApiError(400, f"{place}.content must be a text or a list of blocks", param=f"{place}.content")
    if role == "assistant":
        return [_assistant(content, f"{place}.content", text)]
    return _user(role, content, f"{place}.content")


def _assistant(blocks: Sequence[Mapping[str, Any]], place: str, text: TextSide) -> dict[str, Any]:
    said, thought, calls = [], [], []
    for index, block in enumerate(blocks):
        kind = block.get("type")
        where = f"{place}[{index}]"
        if kind == "thinking":
            thought.append(_field(block, "thinking", where))
        elif kind == "tool_use":
            calls.append(call_of(block.get("id"), _field(block, "name", where), block.get("input"), text))
        elif kind not in _LEFT_OUT_BLOCKS:
            said.append(_text(block, where))
    made: dict[str, Any] = {"role": "assistant", "content": "\n".join(said)}
    if thought:
        made["reasoning_content"] = "\n".join(thought)
    return made | ({"tool_calls": calls} if calls else {})


def _user(role: str, blocks: Sequence[Mapping[str, Any]], place: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{place}[{index}]"
        if block.get("type") == "tool_result":
            result = {"role": "tool", "content": _result(block, where)}
            made.append(result | {"tool_call_id": _field(block, "tool_use_id", where)})
        elif block.get("type") not in _LEFT_OUT_BLOCKS:
            text = _text(block, where)
            if made and made[-1]["role"] == role:
                made[-1]["content"] += "\n" + text
            else:
                made.append({"role": role, "content": text})
    return made or [{"role": role, "content": ""}]


def _result(block: Mapping[str, Any], place: str) -> str:
    content = block.get("content")
    if content is None:
        text = ""
    elif isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = "\n".join(_text(part, f"{place}.content[{index}]") for index, part in enumerate(content))
    else:
        raise ApiError(400, f"{place}.content must be a text or a list of blocks", param=f"{place}.content")
    return f"Error: {text}" if block.get("is_error") is True else text


def _text(block: Any, place: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    source = block.get("source") if kind == "document" else None
    if isinstance(source, Mapping) and source.get("type") == "text":
        return _field(source, "data", f"{place}.source")
    if kind != "text":
        raise ApiError(400, f"{place} is of type {kind!r}; this model reads text only", param=place)
    return _field(block, "text", place)


def _field(block: Mapping[str, Any], name: str, place: str) -> str:
    held = block.get(name)
    if not isinstance(held, str):
        raise ApiError(400, f"{place}.{name} must be a text", param=f"{place}.{name}")
    return held
