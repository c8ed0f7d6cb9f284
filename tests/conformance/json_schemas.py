"""Schemas as people write them, 500 of them, the same on every machine. Knows JSON Schema; runs no grammar.

A schema is made by one of the families below from a seeded random generator, so a number names a schema for good.
Families at the end of the list use keywords that no grammar can hold; they show what is refused or relaxed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COUNT = 500

Schema = dict[str, Any]
_WORDS = (
    "name", "age", "city", "größe", "имя", "标签", "emoji 🙂", "a b", 'quo"te', "back\\slash", "x/y", "$id2",
    "line\nend", "value", "items2", "", "price", "user_id", "isActive", "tags", "é", "0", "true", "Straße", "ключ",
    "日本",
)  # fmt: skip
_PATTERNS = (
    "^[a-z]{1,5}$", "^\\d{3}-\\d{4}$", "^(red|green|blue)$", "[A-Z]", "^[^@ ]+@[a-z]+\\.com$", "^\\p{Lu}\\p{Ll}*$",
    "^v\\d+\\.\\d+$", "^#[0-9a-fA-F]{6}$", "^\\s*\\S\\s*$", "^$", "é+", "^a.c$",
)  # fmt: skip
_FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname", "duration")


@dataclass(frozen=True)
class NamedSchema:
    """One schema of the suite."""

    name: str
    schema: Any  # an object, or a boolean


def schemas(count: int = COUNT) -> list[NamedSchema]:
    """The first `count` schemas."""
    made = []
    for index in range(count):
        family = FAMILIES[index % len(FAMILIES)]
        made.append(NamedSchema(f"{index:03d} {family.__name__}", family(random.Random(index))))
    return made


def _words(rng: random.Random, low: int, high: int) -> list[str]:
    return rng.sample(_WORDS, rng.randint(low, high))


def _string(rng: random.Random) -> Schema:
    low = rng.randint(0, 4)
    bounds = [{}, {"maxLength": rng.randint(low, 12)}, {"minLength": low}, {"minLength": low, "maxLength": low + 3}]
    return {"type": "string", **rng.choice(bounds)}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-200, 200)
    bounds = [
        {}, {"minimum": low}, {"maximum": low}, {"minimum": low, "maximum": low + rng.randint(0, 99)},
        {"exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(2, 99)}, {"multipleOf": rng.randint(1, 12)},
        {"minimum": 0, "maximum": 2**31 - 1}, {"multipleOf": 5, "minimum": 10, "maximum": 90},
    ]  # fmt: skip
    return {"type": "integer", **rng.choice(bounds)}


def _number(rng: random.Random) -> Schema:
    low = rng.choice((-1.5, 0.0, 0.25, 3.0, 100.125))
    bounds = [{}, {"minimum": low}, {"exclusiveMaximum": low}, {"minimum": low, "maximum": low + rng.randint(1, 9)}]
    return {"type": "number", **rng.choice(bounds)}


def _enum(rng: random.Random) -> Schema:
    values = [*_words(rng, 1, 5), 1, -2.5, None, True, [], {"a": 1}, [1, "two"]]
    return {"enum": rng.sample(values, rng.randint(1, 6))}


def _const(rng: random.Random) -> Schema:
    return {"const": rng.choice([0, "", "fixed ✓", None, False, 3.25, [1, 2, [3]], {"k": {"n": None}}])}


def _leaf(rng: random.Random) -> Schema:
    makers: list[Callable[[random.Random], Schema]] = [_string, _integer, _number, _enum, _const]
    return rng.choice([*makers, lambda _: {"type": "boolean"}, lambda _: {"type": "null"}])(rng)


def _value(rng: random.Random, depth: int) -> Schema:
    if depth == 0:
        return _leaf(rng)
    return rng.choice((_leaf, lambda r: _object(r, depth - 1), lambda r: _array(r, depth - 1)))(rng)


def _object(rng: random.Random, depth: int) -> Schema:
    names = _words(rng, 1, 5)
    made: Schema = {"type": "object", "properties": {name: _value(rng, depth) for name in names}}
    made["required"] = [name for name in names if rng.random() < 0.6]
    extra = rng.choice((None, False, {"type": "integer"}))
    return made if extra is None else {**made, "additionalProperties": extra}


def _array(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(0, 3)
    bounds = rng.choice(({}, {"minItems": low}, {"maxItems": low}, {"minItems": low, "maxItems": low + 2}))
    return {"type": "array", "items": _value(rng, depth), **bounds}


def objects(rng: random.Random) -> Schema:
    """Objects of leaves, keys of every script."""
    return _object(rng, 0)


def nested(rng: random.Random) -> Schema:
    """Objects and arrays in each other."""
    return _object(rng, rng.randint(1, 3))


def arrays(rng: random.Random) -> Schema:
    """Arrays with and without bounds."""
    return _array(rng, rng.randint(0, 2))


def leaves(rng: random.Random) -> Schema:
    """A value that is no object."""
    return _leaf(rng)


def tuples(rng: random.Random) -> Schema:
    """Arrays whose places differ."""
    places = [_leaf(rng) for _ in range(rng.randint(1, 4))]
    rest = rng.choice((False, {"type": "boolean"}))
    return {"type": "array", "prefixItems": places, "items": rest, "minItems": rng.randint(0, len(places))}


def patterns(rng: random.Random) -> Schema:
    """Strings that match a regular expression, some with a length as well."""
    string = {"type": "string", "pattern": rng.choice(_PATTERNS)}
    return {"type": "object", "properties": {"text": string}, "required": ["text"], "additionalProperties": False}


def formats(rng: random.Random) -> Schema:
    """Strings of a known format."""
    names = rng.sample(_FORMATS, 3)
    properties = {name: {"type": "string", "format": name} for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def any_of(rng: random.Random) -> Schema:
    """One of several branches."""
    return {"anyOf": [_value(rng, 1) for _ in range(rng.randint(1, 4))]}


def types(rng: random.Random) -> Schema:
    """Several types at once, their keywords side by side."""
    kinds = rng.sample(["string", "integer", "boolean", "null", "array", "object"], rng.randint(2, 4))
    return {"type": kinds, "maxLength": 5, "minimum": 3, "items": {"type": "boolean"}, "required": ["x"]}


def all_of(rng: random.Random) -> Schema:
    """Conditions that hold together."""
    low = rng.randint(0, 20)
    numbers = [{"type": "integer", "minimum": low}, {"maximum": low + rng.randint(0, 50)}]
    parts = [{"properties": {word: _leaf(rng)}, "required": [word]} for word in _words(rng, 1, 3)]
    return rng.choice(({"allOf": numbers}, {"type": "object", "allOf": parts}))


def tagged(rng: random.Random) -> Schema:
    """Branches told apart by a constant, as oneOf and as anyOf."""
    branches = [
        {
            "type": "object",
            "properties": {"kind": {"const": word}, "data": _leaf(rng)},
            "required": ["kind", "data"],
            "additionalProperties": False,
        }
        for word in _words(rng, 2, 4)
    ]
    return {rng.choice(("oneOf", "anyOf")): branches}


def one_of_types(rng: random.Random) -> Schema:
    """oneOf whose branches cannot meet."""
    branches = [{"type": "string", "maxLength": 8}, _integer(rng), {"type": "null"}, _object(rng, 0)]
    return {"oneOf": rng.sample(branches, rng.randint(2, 4))}


def references(rng: random.Random) -> Schema:
    """Definitions used more than once, through `$defs` and through `definitions`."""
    place = rng.choice(("$defs", "definitions"))
    definitions = {"point": _object(rng, 0), "label": _string(rng)}
    properties = {
        "from": {"$ref": f"#/{place}/point"},
        "to": {"$ref": f"#/{place}/point"},
        "labels": {"type": "array", "items": {"$ref": f"#/{place}/label"}, "maxItems": 3},
    }
    return {"type": "object", place: definitions, "properties": properties, "required": ["from", "labels"]}


def recursive(rng: random.Random) -> Schema:
    """Trees and lists that hold themselves."""
    node = {
        "type": "object",
        "properties": {"value": _leaf(rng), "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["value", "children"] if rng.random() < 0.5 else ["value"],
        "additionalProperties": False,
    }
    chain = {
        "type": "object",
        "properties": {"head": _leaf(rng), "tail": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/chain"}]}},
        "required": ["head", "tail"],
    }
    start = rng.choice(("node", "chain"))
    return {"$defs": {"node": node, "chain": chain}, "$ref": f"#/$defs/{start}"}


def maps(rng: random.Random) -> Schema:
    """Objects of free keys, some by pattern."""
    by_pattern = {
        "patternProperties": {"^id_": _integer(rng), "^n[0-9]+$": _string(rng)},
        "additionalProperties": False,
    }
    free = {"additionalProperties": _leaf(rng)}
    return {"type": "object", **rng.choice((by_pattern, free))}


def tool_arguments(rng: random.Random) -> Schema:
    """The arguments of a function, with the annotations that generators write."""
    properties = {
        "location": {"type": "string", "description": "City and country", "title": "Location"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1, "maximum": 16, "examples": [3]},
        "options": {"anyOf": [_object(rng, 0), {"type": "null"}], "default": None},
    }
    kept = dict(rng.sample(list(properties.items()), rng.randint(1, 4)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "GetWeather",
        "type": "object",
        "properties": kept,
        "required": list(kept),
        "additionalProperties": False,
    }


def anything(rng: random.Random) -> Any:
    """Hardly a constraint."""
    return rng.choice(
        (True, {}, {"type": "object"}, {"title": "free"}, {"type": "array"}, {"type": ["object", "array"]})
    )


def overlapping_one_of(rng: random.Random) -> Schema:
    """oneOf whose branches meet: to be relaxed to anyOf."""
    low = rng.randint(0, 9)
    return {"oneOf": [{"type": "integer", "minimum": low}, {"type": "integer", "maximum": low + 5}]}


def not_supported(rng: random.Random) -> Schema:
    """Keywords that look at a value as a whole."""
    array = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 3}}
    return rng.choice(
        (
            {"type": "string", "not": {"enum": ["no"]}},
            {**array, "uniqueItems": True, "maxItems": 3},
            {**array, "contains": {"const": 3}},
            {"type": "object", "dependentRequired": {"a": ["b"]}},
            {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "minProperties": 1},
            {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "integer"}},
            {"type": "string", "format": "credit-card"},
        )
    )


def refused(rng: random.Random) -> Any:
    """No schema, or one that no text fulfils."""
    return rng.choice(
        (
            False,
            {"$ref": "#"},
            {"$ref": "#/$defs/missing"},
            {"$ref": "https://example.com/schema.json"},
            {"type": "integer", "minimum": 5, "maximum": 4},
            {"type": "string", "pattern": "(?=a)b"},
            {"type": "string", "pattern": "(a)\\1"},
            {"type": "nothing"},
            {"enum": []},
        )
    )


FAMILIES: tuple[Callable[[random.Random], Any], ...] = (
    objects, nested, arrays, leaves, tuples, patterns, formats, any_of, types, all_of, tagged, one_of_types, references,
    recursive, maps, tool_arguments, anything, overlapping_one_of, not_supported, refused,
)  # fmt: skip
