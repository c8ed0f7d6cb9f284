"""The dialect of Qwen3-Coder and of Qwen3.5 and later: `<function=name>` and `<parameter=key>` tags.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Knows how such a block is written, and what models do instead. Values become JSON by the tool's schema: a string goes
out as it comes, any other value when it is whole. A key that comes twice keeps its first value.

Also read: no newlines at all; several functions in one block; a missing `<tool_call>` in front of a tool that was
offered, if a parameter or the function's end follows its name; a missing `</parameter>`, `</function>` or
`</tool_call>`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strata.errors import RequestError
from strata.text.tool_calls.argument_types import argument_types
from strata.text.tool_calls.block import BlockReader
from strata.text.tool_calls.dialect import Tool
from strata.text.tool_calls.grammar_text import LINE, json_rule, literal
from strata.text.tool_calls.xml_value import (
    CLOSING,
    END_FUNCTION,
    END_PARAMETER,
    FUNCTION,
    NAME,
    NAME_BEGINNING,
    PARAMETER,
    ParameterValue,
)

OPENING = "<tool_call>"


class QwenXml:
    """The dialect, for `dialects.py`."""

    name = "qwen-xml"
    opening = OPENING
    closing = CLOSING
    bare_openings = (FUNCTION,)
    first_openings: tuple[str, ...] = ()

    def block(self, tools: Sequence[Tool]) -> "XmlBlock":
        """A reader of one block."""
        return XmlBlock(tools)

    def call_rules(self, tool: Tool, name: str) -> list[str]:
        """As the template shows it to the model: each tag on a line of its own, parameters in the schema's order.

        A string that no `enum` limits is any text up to the first closing tag: its length and pattern are not enforced.
        Raises RequestError for a name that cannot stand in a tag.
        """
        properties = tool.parameters.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        required = tool.parameters.get("required")
        required = required if isinstance(required, list) else ()
        for written in (tool.name, *properties):
            if not NAME.fullmatch(f"{written}>"):
                raise RequestError(
                    f"tool {tool.name!r}: {written!r} cannot be written by this model: no < > or newline"
                )
        parts = [f"{name}_{i}{'' if key in required else '?'}" for i, key in enumerate(properties)]
        begin, end = literal(f"{LINE}{FUNCTION}{tool.name}>{LINE}"), literal(END_FUNCTION + LINE)
        rules = [f"{name}: {' '.join([begin, *parts, end])}"]
        for i, key in enumerate(properties):
            rules += _parameter_rules(f"{name}_{i}", key, tool)
        return rules


def _parameter_rules(name: str, key: str, tool: Tool) -> list[str]:
    schema = tool.parameters["properties"][key]
    begin, end = literal(f"{PARAMETER}{key}>{LINE}"), literal(LINE + END_PARAMETER + LINE)
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(choices, list) and choices:
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        return [f"{name}: {begin} ({' | '.join(map(literal, texts))}) {end}"]
    if "string" in argument_types(key, tool.parameters):
        return [f"{name}: {begin} {name}_text {literal(LINE)}", f"{name}_text[lazy]: /(.|\\n)*<\\/parameter>/"]
    return [f"{name}: {begin} {name}_json {end}", f"{name}_json: {json_rule(schema, tool.parameters, tool.is_strict)}"]


class XmlBlock(BlockReader):
    """A reader of one block; see `CallBlock`."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(self._opening, CLOSING)
        self._tools = {tool.name: tool.parameters for tool in tools}
        self._is_bare = False  # the block began without its opening marker
        self._parameters: Mapping[str, Any] = {}  # the schema of the call
        self._name = ""
        self._keys: set[str] = set()  # of the call so far
        self._key = ""
        self._is_first_time = True  # of the key
        self._value = ParameterValue(frozenset(), False, frozenset())

    def _opening(self) -> bool:
        self._is_bare = not self._has(OPENING)
        return self._goto(self._before_function, 0 if self._is_bare else len(OPENING))

    def _before_function(self) -> bool:
        found = self._next()
        if not self._has(FUNCTION):
            return False if not found or self._may_have(FUNCTION) else self._give_up()
        name = self._name_behind(FUNCTION)
        if not name or (self._is_bare and name not in self._tools):
            return False if name == "" else self._give_up()
        self._name, self._keys = name, set()
        return self._goto(self._behind_bare_name) if self._is_bare else self._begin_function()

    def _behind_bare_name(self) -> bool:
        """The tag alone may be prose: a call needs one more."""
        found = self._next()
        if self._has(PARAMETER) or self._has(END_FUNCTION):
            return self._begin_function()
        return False if not found or self._may_have(PARAMETER, END_FUNCTION) else self._give_up()

    def _begin_function(self) -> bool:
        self._parameters = self._tools.get(self._name, {})
        self._begin_call(self._name)
        return self._goto(self._before_parameter)

    def _name_behind(self, tag: str) -> str | None:
        """The name in a tag, which is read; "" if it has not come whole, None if there is none."""
        begin = self._at + len(tag)
        if found := NAME.match(self._raw, begin):
            self._read(found.end() - self._at)
            return found[1].strip() or None
        return "" if NAME_BEGINNING.fullmatch(self._raw, begin) else None

    def _before_parameter(self) -> bool:
        found = self._next()
        if self._has(PARAMETER):
            return self._begin_parameter()
        if self._has(END_FUNCTION):
            return self._end_function(len(END_FUNCTION))
        if self._has(CLOSING):
            return self._end_function(0)
        return False if not found or self._may_have(PARAMETER, END_FUNCTION, CLOSING) else self._give_up()

    def _end_function(self, characters: int) -> bool:
        self._say_arguments("}" if self._keys else "{}")
        self._read(characters)
        self._end_call(is_complete=True)
        self._is_bare = False
        return self._goto(self._behind_function)

    def _begin_parameter(self) -> bool:
        key = self._name_behind(PARAMETER)
        if not key:
            return False if key == "" else self._give_up()
        self._is_first_time = key not in self._keys
        self._say_parameter(f"{', ' if self._keys else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._keys.add(key)
        self._key = key
        return self._goto(self._before_value)

    def _before_value(self) -> bool:
        if self._at == len(self._raw):
            return False
        is_block = self._has("\n")
        known = self._parameters.get("properties")
        others = frozenset(known if isinstance(known, Mapping) else ()) - self._keys
        self._value = ParameterValue(argument_types(self._key, self._parameters), is_block, others)
        return self._goto(self._in_value, int(is_block))

    def _in_value(self) -> bool:
        end, tag = self._value.end_in(self._raw, self._at)
        piece = self._raw[self._at : end]
        if tag is None:
            self._say_parameter(self._value.say(piece))
            self._read(end - self._at)
            return False
        self._say_parameter(self._value.finish(piece))
        behind = tag + len(END_PARAMETER) if self._raw.startswith(END_PARAMETER, tag) else tag
        return self._goto(self._before_parameter, behind - self._at)

    def _say_parameter(self, text: str) -> None:
        if self._is_first_time:
            self._say_arguments(text)

    def _behind_function(self) -> bool:
        found = self._next()
        if self._has(CLOSING):
            return self._close()
        if self._has(OPENING):
            return self._goto(self._opening)
        if self._has(FUNCTION):
            return self._goto(self._before_function)
        return False if not found or self._may_have(CLOSING, OPENING, FUNCTION) else self._give_up()
