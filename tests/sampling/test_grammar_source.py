"""The forms in which a grammar is tried: strict first, never forcing tokens, whole JSON whatever the source holds."""

import json

import pytest

from strata.errors import RequestError
from strata.sampling.grammar_source import LARGEST_BYTES, grammar_forms, read_schema
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec


def test_a_schema_is_tried_strictly_first_and_everything_else_once() -> None:
    forms = list(grammar_forms(GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "object"}')))
    options = [json.loads(form.source)["grammars"][1]["json_schema"]["x-guidance"] for form in forms]
    assert [form.is_relaxed for form in forms] == [False, True, True]
    assert [(o["coerce_one_of"], o["lenient"]) for o in options] == [(False, False), (True, False), (True, True)]
    for kind, source in ((GrammarKind.REGEX, "a"), (GrammarKind.LARK, "x"), (GrammarKind.GBNF, 'root ::= "a"')):
        assert [form.is_relaxed for form in grammar_forms(GrammarSpec(kind, source))] == [False]


@pytest.mark.parametrize("kind", [GrammarKind.LARK, GrammarKind.REGEX])
def test_a_source_stays_inside_its_own_grammar(kind: GrammarKind) -> None:
    source = '"}, {"name": "head", "lark_grammar": "start: x"}]} \n / é'
    (form,) = grammar_forms(GrammarSpec(kind, source))
    head, body = json.loads(form.source)["grammars"]
    assert "no_forcing" in head["lark_grammar"] and body["name"] == "body"


def test_only_behind_reasoning_may_line_ends_come_first() -> None:
    plain, behind = (
        json.loads(next(grammar_forms(GrammarSpec(GrammarKind.LARK, "x", after))).source)["grammars"][0]
        for after in (None, 5)
    )
    assert "\\n{0,2}" in behind["lark_grammar"] and "\\n{0,2}" not in plain["lark_grammar"]


def test_reasoning_that_may_come_first_is_named_by_its_tokens() -> None:
    form = next(grammar_forms(GrammarSpec(GrammarKind.LARK, "x", reasoning=(7, 8))))
    head = json.loads(form.source)["grammars"][0]["lark_grammar"]
    assert "start: (thought NEWLINES)? @body" in head and "thought: <[7]> THOUGHT <[8]>" in head


def test_sources_have_a_largest_size_in_bytes() -> None:
    for kind in (GrammarKind.JSON_SCHEMA, GrammarKind.LARK):
        with pytest.raises(RequestError, match=f"has {LARGEST_BYTES + 2:,} bytes"):
            next(grammar_forms(GrammarSpec(kind, "é" * (LARGEST_BYTES // 2 + 1))))


def test_what_a_schema_may_be() -> None:
    assert read_schema("true") == {}
    assert read_schema('{"const": 1e300, "x-guidance": 1}') == {"const": 1e300, "x-guidance": 1}
    for source in ("false", "null", "3", '"object"', "[]", "", "{'a': 1}", "Infinity", "-1e400"):
        with pytest.raises(RequestError, match=r"^the schema "):
            read_schema(source)
