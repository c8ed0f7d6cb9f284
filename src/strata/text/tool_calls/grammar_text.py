"""Pieces of Lark as llguidance reads it, for the grammars of calls. Knows no dialect and no grammar engine."""

import json
import re
from collections.abc import Mapping
from typing import Any

from strata.errors import RequestError

LINE = "\n"
DEEPEST_SCHEMA = 64
# Between two JSON tokens: a space, or a line's end and an indent. What a small model is allowed it uses up.
_WHITE_SPACE = r" |\n {0,16}"
_CONTROL = re.compile("[\x7f-\x9f]")
_DEFINITIONS = ("$defs", "definitions")
_NAMES = ("properties", "patternProperties", "dependentSchemas", *_DEFINITIONS)  # their keys are names, not keywords
_VALUES = ("enum", "const")
# They say nothing about what fits, and are most of the text of a large set of tools.
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "$comment", "$schema"))


def literal(text: str) -> str:
    """A Lark string. The engine takes no control characters in it, but their escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def json_rule(schema: Any, root: Mapping[str, Any], is_strict: bool) -> str:
    """The right side of a rule for any JSON value of a schema; what it refers to lies in `root`.

    Where it is not strict, alternatives of which exactly one must hold may overlap, and unknown keywords say nothing.
    Raises RequestError for a schema that is nested too deeply.
    """
    whole = dict(schema) if isinstance(schema, Mapping) else {}
    whole |= {key: root[key] for key in _DEFINITIONS if key in root}
    options = {"whitespace_pattern": _WHITE_SPACE, "coerce_one_of": not is_strict, "lenient": not is_strict}
    return "%json " + json.dumps(_bare(whole, 0) | {"x-guidance": options})


def _bare(schema: Any, depth: int) -> Any:
    """A schema without its annotations."""
    if depth > DEEPEST_SCHEMA:
        raise RequestError(f"the schema of a tool is nested too deeply: at most {DEEPEST_SCHEMA} levels work")
    if isinstance(schema, list):
        return [_bare(entry, depth + 1) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    bare = {}
    for key, value in schema.items():
        if key in _NAMES and isinstance(value, Mapping):
            bare[key] = {name: _bare(inner, depth + 1) for name, inner in value.items()}
        elif key not in _ANNOTATIONS:
            bare[key] = value if key in _VALUES else _bare(value, depth + 1)
    return bare
