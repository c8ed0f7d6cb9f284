"""The fields by which a request says what its reply must be: OpenAI's, llama.cpp's and vLLM's, as one grammar.

Knows names and shapes of fields; whether a grammar can be compiled is found out by the engine.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.server.asking import Fields
from strata.server.errors import ApiError
from strata.server.json_body import parse


def grammar_of(body: Fields) -> GrammarSpec | None:
    """What a reply must be, by any of the fields that say so. ApiError 400 if two of them do, or one is unusable."""
    found = [
        (name, spec)
        for name, read in _GRAMMARS.items()
        if body.other(name) is not None and (spec := read(name, body.other(name))) is not None
    ]
    names = [name for name, _ in found]
    if len(found) > 1:
        raise ApiError(400, f"{' and '.join(names)} are given: one of them works", param=found[0][0])
    return found[0][1] if found else None


def json_schema(param: str, schema: Any) -> GrammarSpec:
    """A JSON schema as a grammar."""
    if not isinstance(schema, dict | bool):
        raise ApiError(400, f"{param} must be a JSON schema, an object", param=param)
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))


def response_format(param: str, value: Any) -> GrammarSpec | None:
    """OpenAI's response_format and text.format: text (None), json_object or json_schema."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        if "schema" in value:  # llama.cpp's
            return json_schema(f"{param}.schema", value["schema"])
        return GrammarSpec(GrammarKind.JSON_OBJECT, "")
    if kind == "json_schema":
        held = value.get("json_schema", value)
        schema = held.get("schema") if isinstance(held, dict) else None
        return json_schema(f"{param}.json_schema.schema", schema)
    raise ApiError(400, f"{param}.type is {kind!r}; text, json_object and json_schema work", param=f"{param}.type")


def _source(kind: GrammarKind) -> Callable[[str, Any], GrammarSpec]:
    def read(param: str, value: Any) -> GrammarSpec:
        if not isinstance(value, str) or not value:
            raise ApiError(400, f"{param} must be a text that is not empty", param=param)
        return GrammarSpec(kind, value)

    return read


def _grammar(param: str, value: Any) -> GrammarSpec:
    """A text (llama.cpp's GBNF), or an object as OpenAI's custom tools have it: {syntax, definition}."""
    if isinstance(value, dict):
        kinds = {"lark": GrammarKind.LARK, "regex": GrammarKind.REGEX, "gbnf": GrammarKind.GBNF}
        kind = kinds.get(str(value.get("syntax")))
        if kind is None:
            raise ApiError(
                400, f"{param}.syntax is {value.get('syntax')!r}; lark, regex and gbnf work", param=f"{param}.syntax"
            )
        return _source(kind)(f"{param}.definition", value.get("definition"))
    return _source(GrammarKind.GBNF)(param, value)


def _structured_outputs(param: str, value: Any) -> GrammarSpec | None:
    """vLLM's: one of json, regex, grammar, choice, json_object."""
    if not isinstance(value, dict):
        raise ApiError(400, f"{param} must be an object with json, regex, grammar, choice or json_object", param=param)
    if value.get("json") is not None:
        held = value["json"]
        return json_schema(f"{param}.json", parse(held.encode()) if isinstance(held, str) else held)
    if value.get("regex") is not None:
        return _source(GrammarKind.REGEX)(f"{param}.regex", value["regex"])
    if value.get("grammar") is not None:
        return _source(GrammarKind.LARK)(f"{param}.grammar", value["grammar"])
    if value.get("choice") is not None:
        return _choice(f"{param}.choice", value["choice"])
    return GrammarSpec(GrammarKind.JSON_OBJECT, "") if value.get("json_object") else None


def _choice(param: str, choices: Any) -> GrammarSpec:
    """One of several texts."""
    if not isinstance(choices, list) or not choices or not all(isinstance(text, str) for text in choices):
        raise ApiError(400, f"{param} must be a list of texts", param=param)
    return GrammarSpec(GrammarKind.REGEX, "|".join(re.escape(text) for text in choices))


_GRAMMARS: Mapping[str, Callable[[str, Any], GrammarSpec | None]] = {
    "response_format": response_format,
    "grammar": _grammar,
    "json_schema": json_schema,
    "structured_outputs": _structured_outputs,
    "guided_json": json_schema,
    "guided_regex": _source(GrammarKind.REGEX),
    "guided_grammar": _source(GrammarKind.LARK),
    "guided_choice": _choice,
}
