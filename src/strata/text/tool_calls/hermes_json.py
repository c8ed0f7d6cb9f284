"""The dialect of Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Knows how blocks are written, and what models do instead; the objects in them are `json_call.py`'s matter. There may be
several objects in a block; one whose closing marker is missing ends with its last object.
"""

import json
from collections.abc import Sequence

from strata.text.tool_calls.dialect import Tool
from strata.text.tool_calls.grammar_text import LINE, json_rule, literal
from strata.text.tool_calls.json_call import JsonCallReader

OPENING = "<tool_call>"
CLOSING = "</tool_call>"


class HermesJson:
    """The dialect, for `dialects.py`."""

    name = "hermes-json"
    opening = OPENING
    closing = CLOSING
    bare_openings: tuple[str, ...] = ()
    first_openings: tuple[str, ...] = ()

    def block(self, tools: Sequence[Tool]) -> "HermesBlock":
        """A reader of one block."""
        return HermesBlock()

    def call_rules(self, tool: Tool, name: str) -> list[str]:
        """As the template shows it to the model: one space behind colons and commas, a line of its own."""
        before = '{"name": ' + json.dumps(tool.name, ensure_ascii=False) + ', "arguments": '
        return [
            f"{name}: {literal(LINE + before)} {name}_arguments {literal('}' + LINE)}",
            f"{name}_arguments: {json_rule(tool.parameters or {'type': 'object'}, tool.parameters, tool.is_strict)}",
        ]


class HermesBlock(JsonCallReader):
    """A reader of one block; see `CallBlock`."""

    def __init__(self) -> None:
        super().__init__(self._opening, CLOSING)

    def _opening(self) -> bool:
        return self._goto(self._before_object, len(OPENING))

    def _behind_object(self) -> bool:
        found = self._next()
        if found == "{":
            return self._goto(self._before_object)
        if self._has(CLOSING):
            return self._close()
        if self._has(OPENING):
            return self._goto(self._opening)
        return False if not found or self._may_have(CLOSING, OPENING) else self._give_up()
