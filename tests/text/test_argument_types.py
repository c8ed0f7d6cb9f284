"""Text of arguments becomes JSON by its schema; what does not parse as the schema says stays text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.text.tool_calls.argument_types import (
    ALL_TYPES,
    argument_types,
    may_go_on_as_string,
    typed_value,
    types_of,
)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "02139", "02139"),
        ({"type": "string"}, ' {"a": 1}\n', ' {"a": 1}\n'),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, " 7\n", 7),
        ({"type": "integer"}, "7.0", 7.0),
        ({"type": "integer"}, "7.5", "7.5"),
        ({"type": "integer"}, "seven", "seven"),
        ({"type": "integer"}, "", ""),
        ({"type": "number"}, "-1e3", -1000.0),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "FALSE", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "array"}, "[1, true]", [1, True]),
        ({"type": "array"}, "[1", "[1"),
        ({"type": "array"}, "{}", "{}"),
        ({"type": "object"}, '{"a": None}', {"a": None}),
        ({"type": "object"}, '{"a": 1} b', '{"a": 1} b'),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nullify", "nullify"),
        ({"type": ["integer", "string"]}, "7", 7),
        ({"enum": ["1", 2]}, "2", 2),
        ({"enum": ["a", "b"]}, "7", "7"),
        ({"const": 3}, "3", 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"type": "boolean"}, {"$ref": "#/$defs/list"}]}, "[]", []),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]}, "null", "null"),
        ({"$ref": "#/$defs/missing"}, "7", 7),
        ({"$ref": "#/$defs/self"}, "7", 7),
        (True, "7", 7),
        ({}, "07", "07"),
        ({"type": 5, "enum": 3, "anyOf": {}}, "7", 7),
    ],
)
def test_a_value_has_the_type_that_its_schema_allows(schema: Any, text: str, value: Any) -> None:
    root = {
        "properties": {"x": schema},
        "$defs": {"list": {"type": "array"}, "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"$ref": "#/$defs/self"}]}},
    }
    found = json.loads(typed_value(text, argument_types("x", root)))
    assert found == value and type(found) is type(value)


def test_an_argument_that_no_schema_knows_is_text() -> None:
    for parameters in ({}, {"properties": {"y": {}}}, {"properties": []}):
        assert argument_types("x", parameters) == {"string"}


def test_many_references_to_each_other_take_no_time() -> None:
    layers = {f"l{i}": {"anyOf": [{"$ref": f"#/$defs/l{i + 1}"}] * 9} for i in range(60)}
    assert types_of({"$ref": "#/$defs/l0"}, {"$defs": layers}) == ALL_TYPES


@settings(max_examples=200, deadline=None)
@given(st.text("nulNone \n7", max_size=6), st.text("nulNone 7", max_size=4))
def test_what_is_said_to_be_a_string_stays_one(begin: str, rest: str) -> None:
    for types in ({"string"}, {"string", "null"}):
        if may_go_on_as_string(begin, frozenset(types)):
            assert json.loads(typed_value(begin + rest, frozenset(types))) == begin + rest


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12), st.sets(st.sampled_from(sorted(ALL_TYPES)), min_size=1))
def test_any_text_becomes_json(text: str, types: set[str]) -> None:
    json.loads(typed_value(text, frozenset(types)))
