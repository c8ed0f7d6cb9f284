"""Pieces of Lark mean what they say to the grammar engine."""

import json
from typing import Any

import pytest

from strata.errors import RequestError
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.text.tool_calls.grammar_text import DEEPEST_SCHEMA, json_rule, literal
from tests.text.reply_tools import MARKED
from tests.text.test_tool_grammar import factory, takes

pytest.importorskip("llguidance", reason="the extra server has it")


@pytest.mark.parametrize(
    "text", ["a", '"', "\\", "\n\t", "é🎉", "/", "\x7f\x9f", "\u2028\ufeff", "$%&|?*+()[]{}<>", "\\u41"]
)
def test_a_literal_is_its_text(text: str) -> None:
    spec = GrammarSpec(GrammarKind.LARK, f"start: {literal(text)}")
    assert takes(factory(MARKED).compile(spec), text)
    assert not takes(factory(MARKED).compile(spec), text + "x")


def test_a_schema_finds_its_definitions() -> None:
    root = {"definitions": {"port": {"type": "string"}}}
    rule = json_rule({"$ref": "#/definitions/port"}, root, is_strict=True)
    for text, fits in (('"Kiel"', True), ("7", False)):
        assert takes(factory(MARKED).compile(GrammarSpec(GrammarKind.LARK, f"start: {rule}")), text) == fits


def test_annotations_are_left_out_and_names_are_not() -> None:
    schema = {
        "title": "T",
        "properties": {"title": {"type": "string", "description": "d" * 999}, "x": {"enum": [{"title": 1}]}},
        "anyOf": [{"required": ["title"], "default": {}}],
        "$defs": {"description": {"type": "integer", "examples": [1]}},
    }
    rule = json.loads(json_rule(schema, schema, is_strict=True).removeprefix("%json "))
    assert rule.pop("x-guidance")["lenient"] is False
    assert rule == {
        "properties": {"title": {"type": "string"}, "x": {"enum": [{"title": 1}]}},
        "anyOf": [{"required": ["title"]}],
        "$defs": {"description": {"type": "integer"}},
    }


def test_a_schema_has_a_deepest_level() -> None:
    schema: dict[str, Any] = {}
    for _ in range(DEEPEST_SCHEMA + 2):
        schema = {"not": schema}
    with pytest.raises(RequestError, match="64 levels"):
        json_rule(schema, schema, is_strict=True)
