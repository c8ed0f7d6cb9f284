"""A request's grammar as text for the grammar engine: checked, and in the forms in which it is tried.

Knows the languages of grammars and what they may cost; runs no grammar. Every form is the engine's own JSON of two
grammars: a head that turns off forced tokens, so that a mask is what the grammar allows and never depends on how a text
is usually cut into tokens, and the request's grammar as the body.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strata.errors import RequestError
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec

# The grammar engine recurses along references. At 8 MiB of stack a chain of 2,000 ended the process, which is why
# compiling has a larger one; there 5,000, more than fit this size, took 180 MB and 0.5 s (docs/log.md, 2026-11-30).
LARGEST_BYTES = 256 << 10
LONGEST_PATTERN = 4096  # characters; what a pattern takes grows by the square, too
DEEPEST_SCHEMA = 64
MOST_PROPERTIES = 2_000  # of one object: 0.3 s to compile, and four times that for twice as many

# A long chain of terminals costs memory by its square: 20,000 in Lark, which 50,000 let through, took 0.8 GB and 3 s.
# The schemas of 128 tools in one Lark grammar of 219 KiB need less than that.
_WORK_OF_A_TEXT = 40_000
_WORK_OF_A_SCHEMA = 1_000_000

# Between two JSON tokens: a space, or a line's end and an indent. What a small model is allowed it uses up: with 64
# characters of any kind at each place its replies ran into max_tokens (docs/log.md, 2026-11-30).
_WHITESPACE = r" |\n {0,16}"

_HEAD = '%llguidance {"no_forcing": true}\nstart: @body'
# Behind their reasoning models write up to two line ends first; they are no part of the reply's text (text/reply.py).
_HEAD_BEHIND_REASONING = '%llguidance {"no_forcing": true}\nstart: /\\n{0,2}/ @body'

_HEAD_WITH_REASONING = r"""%llguidance {"no_forcing": true}
start: (thought NEWLINES)? @body
NEWLINES: /\n{0,2}/
THOUGHT: /(.|\n)*/"""


@dataclass(frozen=True)
class GrammarForm:
    """One way of stating a grammar to the engine."""

    source: str
    work: int  # the engine's measure of what its lexer may take
    is_relaxed: bool = False  # something may not be enforced as the request says it


def grammar_forms(spec: GrammarSpec) -> Iterator[GrammarForm]:
    """The forms to try, the strictest first. Raises RequestError for what no form can hold."""
    size = len(spec.source.encode("utf-8", "surrogatepass"))
    if size > LARGEST_BYTES:
        raise RequestError(f"the {spec.kind.value} has {size:,} bytes; at most {LARGEST_BYTES:,} are compiled")
    head = _head(spec)
    for language, body, is_relaxed in _bodies(spec):
        grammars = [{"lark_grammar": head}, {"name": "body", language: body}]
        work = _WORK_OF_A_SCHEMA if language == "json_schema" else _WORK_OF_A_TEXT
        yield GrammarForm(json.dumps({"grammars": grammars}), work, is_relaxed)


def _head(spec: GrammarSpec) -> str:
    if spec.begins_after is not None:
        return _HEAD_BEHIND_REASONING
    if spec.reasoning is None:
        return _HEAD
    opening, closing = spec.reasoning
    return f"{_HEAD_WITH_REASONING}\nthought: <[{opening}]> THOUGHT <[{closing}]>"


def _bodies(spec: GrammarSpec) -> Iterator[tuple[str, str | dict[str, Any], bool]]:
    """Language, grammar in it and whether it is relaxed."""
    match spec.kind:
        case GrammarKind.JSON_OBJECT:
            yield "json_schema", _with_options({"type": "object"}), False
        case GrammarKind.JSON_SCHEMA:
            schema = read_schema(spec.source)
            yield "json_schema", _with_options(schema), False
            yield "json_schema", _with_options(schema, coerce_one_of=True), True
            yield "json_schema", _with_options(schema, coerce_one_of=True, lenient=True), True
        case GrammarKind.REGEX:
            yield "lark_grammar", f"start: /{_regex_in_lark(spec.source)}/", False
        case GrammarKind.LARK:
            yield "lark_grammar", spec.source, False
        case GrammarKind.GBNF:
            yield "lark_grammar", _lark_of_gbnf(spec.source), False


def read_schema(source: str) -> dict[str, Any]:
    """The schema that a JSON text holds; `true` is the empty one. RequestError for what is no schema."""
    try:
        schema = json.loads(source, parse_constant=_refuse_constant, parse_float=_finite)
        _check_shape(schema, 0)
    except RecursionError:
        raise RequestError(f"the schema is nested too deeply: at most {DEEPEST_SCHEMA} levels work") from None
    except ValueError as error:
        raise RequestError(f"the schema is not valid JSON: {error}") from error
    if schema is True:
        return {}
    if schema is False:
        raise RequestError("the schema is false, which no text fulfils")
    if not isinstance(schema, dict):
        raise RequestError(f"the schema is {str(schema)[:40]!r}; it must be an object")
    return schema


def _check_shape(value: Any, depth: int) -> None:
    if not isinstance(value, dict | list):
        return
    if depth == DEEPEST_SCHEMA:
        raise RequestError(f"the schema is nested too deeply: at most {DEEPEST_SCHEMA} levels work")
    if isinstance(value, dict) and len(value) > MOST_PROPERTIES:
        raise RequestError(f"the schema has an object with {len(value):,} entries: at most {MOST_PROPERTIES:,} work")
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if key == "pattern":
            _check_pattern(inner)
        if key == "patternProperties" and isinstance(inner, dict):
            for pattern in inner:
                _check_pattern(pattern)
        _check_shape(inner, depth + 1)


def _check_pattern(pattern: Any) -> None:
    if isinstance(pattern, str) and len(pattern) > LONGEST_PATTERN:
        raise RequestError(f"the schema has a pattern of {len(pattern):,} characters: at most {LONGEST_PATTERN:,} work")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


def _with_options(schema: dict[str, Any], **relaxed: bool) -> dict[str, Any]:
    options = {"whitespace_pattern": _WHITESPACE, "coerce_one_of": False, "lenient": False, **relaxed}
    return {**schema, "x-guidance": options}


def _regex_in_lark(pattern: str) -> str:
    import llguidance

    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise RequestError("the regex ends in a backslash that escapes nothing")
    return str(llguidance.regex_to_lark(pattern, use_ascii=""))


def _lark_of_gbnf(source: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(_ESCAPE.sub(_spelled_escape, source)))
    except RecursionError:
        raise RequestError("the gbnf grammar is nested too deeply") from None
    except Exception as error:  # the converter raises bare Exception, and IndexError at a text's end
        raise RequestError(f"the gbnf grammar cannot be read: {error}") from error


_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)


def _spelled_escape(match: re.Match[str]) -> str:
    """`\\u0410` as the letter itself: the converter drops zeros at the front, which changes what it means."""
    digits = match[1][1:]
    code = int(digits, 16) if digits else -1
    if not digits or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        return match[0]
    return chr(code) if code >= 0xA0 else f"\\x{code:02x}"
