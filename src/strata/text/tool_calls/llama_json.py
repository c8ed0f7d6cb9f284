"""The dialect of Llama 3: a reply that is `{"name": ..., "parameters": {...}}`, or has it behind `<|python_tag|>`.

Knows how calls stand in a reply; the objects themselves are `json_call.py`'s matter. An object without the marker is a
call only in front of all other text, with the name of a tool that was offered and no keys but a call's: an answer in
JSON is an answer. Several calls follow each other, with or without a semicolon; there is no closing marker.
"""

import json
from collections.abc import Sequence

from strata.text.tool_calls.dialect import Tool
from strata.text.tool_calls.grammar_text import json_rule, literal
from strata.text.tool_calls.json_call import JsonCallReader

OPENING = "<|python_tag|>"
_KEYS = ("type", "name", "parameters", "arguments")


class LlamaJson:
    """The dialect, for `dialects.py`."""

    name = "llama-json"
    opening = OPENING
    closing = ""
    bare_openings: tuple[str, ...] = ()
    first_openings = ("{",)

    def block(self, tools: Sequence[Tool]) -> "LlamaBlock":
        """A reader of one block."""
        return LlamaBlock(tools)

    def call_rules(self, tool: Tool, name: str) -> list[str]:
        """As the template shows it to the model."""
        before = '{"name": ' + json.dumps(tool.name, ensure_ascii=False) + ', "parameters": '
        return [
            f"{name}: {literal(before)} {name}_parameters {literal('}')}",
            f"{name}_parameters: {json_rule(tool.parameters or {'type': 'object'}, tool.parameters, tool.is_strict)}",
        ]


class LlamaBlock(JsonCallReader):
    """A reader of calls up to the end of the reply; see `CallBlock`."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(self._opening, closing="")
        self._offered = frozenset(tool.name for tool in tools)
        self._is_marked = False

    def _opening(self) -> bool:
        self._is_marked = self._has(OPENING)
        return self._goto(self._before_object, len(OPENING) if self._is_marked else 0)

    def _accepts_key(self, key: str) -> bool:
        return self._is_marked or key in _KEYS

    def _accepts_name(self, name: str) -> bool:
        return name in self._offered or (self._is_marked and name != "")

    def _behind_object(self) -> bool:
        found = self._next()
        if found == ";":
            return self._goto(self._before_object, 1)
        if found == "{":
            return self._goto(self._before_object)
        if self._has(OPENING):
            return self._goto(self._opening)
        return False if not found or self._may_have(OPENING) else self._give_up()
