"""The tools of a request and the choice among them, as the OpenAI APIs state them.

Knows both spellings of a tool (nested in `function`, and flat as in Responses); not how a model writes a call.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from strata.server.errors import ApiError
from strata.server.text_side import NO_CALLS, Calls
from strata.text.tool_calls.dialect import Tool

LONGEST_NAME = 128


def calls_of(
    tools: Sequence[Mapping[str, Any]] | None, choice: Any, parallel: bool | None
) -> tuple[Calls, tuple[str, ...]]:
    """What calls a reply may hold, and a notice for every tool that is left out.

    Tools of kinds that only a provider's own servers can run are left out; the reply says so.
    """
    functions: list[tuple[Mapping[str, Any], str]] = []
    notices: list[str] = []
    for index, tool in enumerate(tools or ()):
        for place, inner in _flattened(tool, f"tools[{index}]"):
            if inner.get("type", "function") == "function":
                functions.append((_function(inner, place), place))
            else:
                notices.append(
                    f"{place} of type {str(inner.get('type'))[:50]!r} is left out: this server cannot run it"
                )
    _check_names(functions)
    chosen = _chosen(choice)
    if not functions:
        if chosen.is_required:
            raise ApiError(400, "tool_choice asks for a call, and there are no tools", param="tool_choice")
        return NO_CALLS, tuple(notices)
    if chosen.is_none:
        return NO_CALLS, tuple(notices)
    offered = [function for function, _ in functions]
    known = [function["name"] for function in offered]
    for name in chosen.names or ():
        if name not in known:
            listed = ", ".join(known)
            raise ApiError(400, f"tool_choice names {name!r}; there are {listed}", param="tool_choice")
    allowed = [function for function in offered if chosen.names is None or function["name"] in chosen.names]
    shown = offered if chosen.is_required else allowed
    return (
        Calls(
            shown=tuple(_as_shown(function) for function in shown),
            allowed=tuple(
                Tool(function["name"], function.get("parameters") or {}, function.get("strict") is True)
                for function in allowed
            ),
            is_required=chosen.is_required,
            is_parallel=parallel is not False,
            is_strict=any(function.get("strict") is True for function in allowed),
        ),
        tuple(notices),
    )


class _Chosen:
    """A tool_choice, understood."""

    def __init__(self, is_none: bool = False, is_required: bool = False, names: Sequence[str] | None = None) -> None:
        self.is_none = is_none
        self.is_required = is_required
        self.names = names  # only these; None: any


def _chosen(choice: Any) -> _Chosen:
    simple = {None: _Chosen(), "auto": _Chosen(), "none": _Chosen(is_none=True), "required": _Chosen(is_required=True)}
    simple["any"] = simple["required"]
    if choice is None or isinstance(choice, str):
        if choice in simple:
            return simple[choice]
        raise ApiError(400, f"tool_choice is {choice!r}; none, auto and required work", param="tool_choice")
    kind = choice.get("type")
    if kind == "function":
        held = choice.get("function", choice)
        name = held.get("name") if isinstance(held, dict) else None
        if isinstance(name, str):
            return _Chosen(is_required=True, names=[name])
    if kind == "allowed_tools":
        held = choice.get("allowed_tools", choice)
        tools = held.get("tools") if isinstance(held, dict) else None
        if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
            names = [(tool.get("function") or tool).get("name") for tool in tools]
            return _Chosen(is_required=held.get("mode") == "required", names=[str(name) for name in names])
    raise ApiError(
        400,
        "tool_choice must be none, auto, required, {type: function, function: {name}} or {type: allowed_tools, ...}",
        param="tool_choice",
    )


def _flattened(tool: Any, place: str) -> list[tuple[str, Mapping[str, Any]]]:
    """A tool, or those that a namespace holds."""
    if not isinstance(tool, Mapping):
        raise ApiError(400, f"{place} must be an object", param=place)
    inner = tool.get("tools")
    if tool.get("type") == "namespace" and isinstance(inner, list):
        held = [_flattened(entry, f"{place}.tools[{index}]") for index, entry in enumerate(inner)]
        return list(itertools.chain.from_iterable(held))
    return [(place, tool)]


def _function(tool: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        raise ApiError(400, f"{place}.function must be an object with a name", param=place)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
        raise ApiError(400, f"{place} needs a name of at most {LONGEST_NAME} characters", param=f"{place}.name")
    if not name.isprintable():
        raise ApiError(400, f"{place}.name is {name!r}; it must hold printable characters only", param=f"{place}.name")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ApiError(400, f"{place}.parameters must be a JSON schema, an object", param=f"{place}.parameters")
    return function


def _check_names(functions: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    seen: set[str] = set()
    for function, place in functions:
        if function["name"] in seen:
            raise ApiError(400, f"{place}: there are two tools called {function['name']!r}", param=f"{place}.name")
        seen.add(function["name"])


def _as_shown(function: Mapping[str, Any]) -> dict[str, Any]:
    """As templates take it."""
    shown = {"name": function["name"]}
    if function.get("description") is not None:
        shown["description"] = function["description"]
    shown["parameters"] = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": shown}
