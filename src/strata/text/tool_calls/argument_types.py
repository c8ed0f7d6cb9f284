"""From the text of an argument to JSON, by the tool's schema. Knows JSON schemas; not how a dialect writes a call.

A string stays as it is. Anything else is parsed; what does not parse as a type that the schema allows stays text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from strata.text.tool_calls.json_value import JsonValue

ALL_TYPES = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
_STRING = frozenset(("string",))
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?")
_DEEPEST = 32  # unions inside unions; deeper ones say nothing


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema allows, as far as its `type`, `enum`, `const`, unions and local references say."""
    return _types(schema, root, {}, _DEEPEST)


def argument_types(name: str, parameters: Mapping[str, Any]) -> frozenset[str]:
    """The types of one argument. Arguments that the schema does not know are strings."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping) or name not in properties:
        return _STRING
    return types_of(properties[name], parameters)


def may_go_on_as_string(text: str, types: frozenset[str]) -> bool:
    """Whether a value that begins with `text` is a string, however it goes on."""
    if types == _STRING:
        return True
    return types == {"string", "null"} and not any(word.startswith(text.strip()) for word in ("null", "None"))


def typed_value(text: str, types: frozenset[str]) -> str:
    """The JSON of an argument."""
    value = text.strip()
    if types != _STRING and value:
        reader = JsonValue()
        # The space ends a number; nothing but it may be left.
        found, behind = reader.take(value + " ", 0)
        if reader.is_done and behind >= len(value) and _type_of(found) & types:
            return found
        if "boolean" in types and value.lower() in ("true", "false"):
            return value.lower()
    return json.dumps(text, ensure_ascii=False)


def _type_of(value: str) -> frozenset[str]:
    first = value[0]
    if first in "-0123456789":
        return frozenset(("integer", "number")) if _WHOLE.fullmatch(value) else frozenset(("number",))
    names = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
    return frozenset((names.get(first, "number"),))  # Python writes NaN and Infinity


def _types(schema: Any, root: Mapping[str, Any], referred: dict[str, frozenset[str]], depth: int) -> frozenset[str]:
    """`referred`: the types behind references met so far; one inside itself says nothing."""
    if not isinstance(schema, Mapping) or depth == 0:
        return ALL_TYPES
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in referred:
            referred[reference] = ALL_TYPES
            referred[reference] = _types(_referred(reference, root), root, referred, depth - 1)
        return referred[reference]
    types = _stated_types(schema)
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list) and schema[union]:
            types &= frozenset().union(*(_types(option, root, referred, depth - 1) for option in schema[union]))
    for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        types &= _types(part, root, referred, depth - 1)
    return types or ALL_TYPES


def _stated_types(schema: Mapping[str, Any]) -> frozenset[str]:
    types = ALL_TYPES
    stated = schema.get("type")
    if isinstance(stated, str | list):
        types &= frozenset([stated] if isinstance(stated, str) else [t for t in stated if isinstance(t, str)])
    constants = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(constants, list) and constants:
        types &= frozenset().union(*(_type_of(json.dumps(value)) for value in constants))
    return types


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What `#/$defs/Name` points to; None if it points nowhere."""
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
