"""Grammars of calls: what they allow is read as calls that follow their schemas, what a model writes is allowed."""

import contextlib
import functools
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import RequestError
from strata.sampling.grammar import Grammar
from strata.sampling.grammar_compile import GrammarFactory
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.token_mask import allows
from strata.text.grammar_vocabulary import grammar_vocabulary
from strata.text.reasoning import ReasoningMarkers
from strata.text.reply import ReplyFormat, ReplyReader
from strata.text.tokenizer import Tokenizer
from strata.text.tool_calls.dialect import Dialect, Tool
from strata.text.tool_calls.dialects import DIALECTS, dialect_named
from strata.text.tool_calls.grammar import MOST_REQUIRED_CALLS, tool_grammar
from tests.sampling.grammars import allowed_ids
from tests.text.reply_tools import MARKED, SPELLED, events_of, read, seen, tokens
from tests.text.test_tool_calls import SAIL_JSON, SAIL_LLAMA, SAIL_XML

pytest.importorskip("llguidance", reason="the extra server has it")
jsonschema = pytest.importorskip("jsonschema", reason="the extra dev has it")

THINKING = ReasoningMarkers("<think>", "</think>")
TOOLS = [
    Tool(
        "sail",
        {
            "type": "object",
            "properties": {
                "port": {"type": "string"},
                "knots": {"type": "integer"},
                "wind": {"enum": ["calm", "storm", 9]},
                "crew": {"$ref": "#/$defs/Crew"},
            },
            "required": ["port"],
            "additionalProperties": False,
            "$defs": {
                "Crew": {
                    "type": "object",
                    "properties": {"name": {"type": "string", "maxLength": 5}, "fit": {"type": "boolean"}},
                    "required": ["fit"],
                    "additionalProperties": False,
                }
            },
        },
    ),
    Tool("stop"),
    Tool('odd "name" \\ é', {"type": "object", "properties": {}, "additionalProperties": False}),
]
CALL = {"hermes-json": SAIL_JSON, "qwen-xml": SAIL_XML, "llama-json": SAIL_LLAMA}
KEYWORDS = st.sampled_from(
    ["type", "properties", "required", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "a", "port"]
)
both_tokenizers = pytest.mark.parametrize("tokenizer", [MARKED, SPELLED], ids=["marked", "spelled"])
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


@functools.cache
def factory(tokenizer: Tokenizer) -> GrammarFactory:
    ends = [tokenizer.token_id("<|im_end|>")]
    return GrammarFactory(lambda: grammar_vocabulary(tokenizer, ends, tokenizer.vocabulary_size))


def compiled(dialect: Dialect, tokenizer: Tokenizer = MARKED, tools: Sequence[Tool] = TOOLS, **how: Any) -> Grammar:
    source = tool_grammar(dialect, tools, tokenizer, **({"is_required": True} | how))
    return factory(tokenizer).compile(GrammarSpec(GrammarKind.LARK, source))


def takes(grammar: Grammar, text: str, tokenizer: Tokenizer = MARKED) -> bool:
    """Whether the grammar allows this reply and its end behind it."""
    for token_id in [*tokens(tokenizer, text), tokenizer.token_id("<|im_end|>")]:
        if grammar.is_finished:
            return token_id == tokenizer.token_id("<|im_end|>")
        if not allows(grammar.masks()[0], token_id):
            return False
        grammar.commit([token_id])
    return True


def drawn(grammar: Grammar, tokenizer: Tokenizer, random: Random) -> list[int]:
    """A reply drawn from the grammar; now and then what ends a text, a list or an object is preferred."""
    ids: list[int] = []
    planned: list[int] = []
    while not grammar.is_finished:
        allowed = allowed_ids(grammar.masks()[0])
        if not planned and random.random() < 0.2:
            planned = tokenizer.encode(random.choice(['"', "}", "]", "</parameter>", "0"]))
        wanted = planned.pop(0) if planned else None
        ids.append(wanted if wanted in allowed else random.choice(allowed))
        grammar.commit([ids[-1]])
        assert len(ids) < 3000
    return ids


@both_tokenizers
@every_dialect
@pytest.mark.parametrize("seed", range(4))
def test_what_is_drawn_is_read_as_calls_that_follow_their_schemas(
    dialect: Dialect, tokenizer: Tokenizer, seed: int
) -> None:
    ids = drawn(compiled(dialect, tokenizer, is_parallel=False), tokenizer, Random(seed))
    reader = ReplyReader(tokenizer, ReplyFormat(THINKING, dialect=dialect, tools=TOOLS))
    result = seen(events_of(reader, [i for i in ids if i != tokenizer.token_id("<|im_end|>")]))
    assert (result.content, result.reasoning, result.unfinished, len(result.calls)) == ("", "", "", 1)
    name, arguments, is_complete = result.calls[0]
    schema = next(tool.parameters for tool in TOOLS if tool.name == name)
    assert is_complete
    jsonschema.validate(json.loads(str(arguments)), schema or {"type": "object"})


@both_tokenizers
@every_dialect
def test_what_a_model_writes_is_allowed(dialect: Dialect, tokenizer: Tokenizer) -> None:
    call = CALL[dialect.name]
    assert takes(compiled(dialect, tokenizer), call, tokenizer)
    assert takes(compiled(dialect, tokenizer), f"\n\n{call}\n{call}", tokenizer)
    assert not takes(compiled(dialect, tokenizer), f"So: {call}", tokenizer)
    assert not takes(compiled(dialect, tokenizer), "", tokenizer)
    assert not takes(compiled(dialect, tokenizer), call.replace("sail", "sink"), tokenizer)


@every_dialect
def test_calls_that_are_required_come_to_an_end(dialect: Dialect) -> None:
    call = CALL[dialect.name]
    assert takes(compiled(dialect), "\n".join([call] * MOST_REQUIRED_CALLS))
    assert not takes(compiled(dialect), "\n".join([call] * (MOST_REQUIRED_CALLS + 1)))


@every_dialect
def test_one_call_is_all_where_calls_are_not_parallel(dialect: Dialect) -> None:
    call = CALL[dialect.name]
    assert takes(compiled(dialect, is_parallel=False), call)
    assert not takes(compiled(dialect, is_parallel=False), f"{call}\n{call}")


@both_tokenizers
@every_dialect
def test_content_may_come_first_or_alone_where_no_call_is_required(dialect: Dialect, tokenizer: Tokenizer) -> None:
    call = CALL[dialect.name]
    for text in (call, f"To <b>Kiel</b>.\n\n{call}", "No need to.", "", f"a{call}\n{call}"):
        assert takes(compiled(dialect, tokenizer, is_required=False), text, tokenizer), text
    for text in (dialect.opening, f"a{call} b", call.replace("sail", "sink"), f"a{dialect.opening}b"):
        assert not takes(compiled(dialect, tokenizer, is_required=False), text, tokenizer), text


@both_tokenizers
@every_dialect
def test_reasoning_may_come_first_where_it_may_come_at_all(dialect: Dialect, tokenizer: Tokenizer) -> None:
    text = f"<think>\nto a < b\n</think>\n\n{CALL[dialect.name]}"
    assert takes(compiled(dialect, tokenizer, reasoning=THINKING), text, tokenizer)
    assert takes(compiled(dialect, tokenizer, reasoning=THINKING), CALL[dialect.name], tokenizer)
    assert not takes(compiled(dialect, tokenizer), text, tokenizer)
    assert not takes(compiled(dialect, tokenizer, reasoning=THINKING), "<think>no end", tokenizer)


def test_arguments_must_follow_the_schema() -> None:
    json_call = '<tool_call>\n{"name": "sail", "arguments": %s}\n</tool_call>'
    for arguments in ('{"port": "a", "knots": 7}', '{"port": "a", "crew": {"fit": true}}', '{"port": "é"}'):
        assert takes(compiled(dialect_named("hermes-json")), json_call % arguments), arguments
    for arguments in ("{}", '{"port": 7}', '{"port": "a", "knots": 7.5}', '{"port": "a", "x": 1}', '{"knots": 7}'):
        assert not takes(compiled(dialect_named("hermes-json")), json_call % arguments), arguments


def test_parameters_must_follow_the_schema() -> None:
    call = "<tool_call>\n<function=sail>\n%s</function>\n</tool_call>"
    port = "<parameter=port>\n\n a <b> \n\n</parameter>\n"
    for rest in ("", "<parameter=knots>\n7\n</parameter>\n", "<parameter=wind>\nstorm\n</parameter>\n",
                 '<parameter=crew>\n{"fit": false}\n</parameter>\n'):  # fmt: skip
        assert takes(compiled(dialect_named("qwen-xml")), call % (port + rest)), rest
    for rest in ("<parameter=knots>\nfast\n</parameter>\n", "<parameter=wind>\nrain\n</parameter>\n", port,
                 "<parameter=x>\n1\n</parameter>\n", "<parameter=crew>\n{}\n</parameter>\n"):  # fmt: skip
        assert not takes(compiled(dialect_named("qwen-xml")), call % (port + rest)), rest
    assert not takes(compiled(dialect_named("qwen-xml")), call % "")


@every_dialect
def test_a_schema_that_cannot_be_held_to_is_refused_only_where_it_is_strict(dialect: Dialect) -> None:
    schema = {"type": "object", "properties": {"n": {"not": {"type": "string"}, "type": "integer"}}}
    assert takes(compiled(dialect, tools=[Tool("sail", schema, is_strict=False)]), CALL[dialect.name].replace(
        "port", "n").replace('"Kiel"', "7").replace("Kiel", "7"))  # fmt: skip
    with pytest.raises(RequestError, match="not"):
        compiled(dialect, tools=[Tool("sail", schema)])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["string", "a", "#/$defs/a", "integer", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=12,
)


@every_dialect
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYWORDS, JSON_VALUES, max_size=4), st.booleans())
def test_no_schema_fails_but_with_a_request_error(dialect: Dialect, parameters: Any, is_strict: bool) -> None:
    tools = [Tool("sail", parameters, is_strict)]
    with contextlib.suppress(RequestError):
        tool_grammar(dialect, tools, MARKED, is_required=True)
    for call in CALL.values():
        read(call, ReplyFormat(THINKING, dialect=dialect, tools=tools))


def test_a_name_that_no_tag_can_hold_is_refused() -> None:
    for tool in (Tool("a>b"), Tool("f", {"properties": {"a\nb": {}}})):
        with pytest.raises(RequestError, match="cannot be written"):
            compiled(dialect_named("qwen-xml"), tools=[tool])


def test_a_call_needs_a_tool() -> None:
    with pytest.raises(RequestError, match="tools is empty"):
        tool_grammar(DIALECTS[0], [], MARKED, is_required=True)


def test_a_reply_that_is_allowed_is_read_whole() -> None:
    text = f"Off.\n{SAIL_JSON}\n{SAIL_JSON}"
    assert takes(compiled(dialect_named("hermes-json"), is_required=False), text)
    assert len(read(text, ReplyFormat(dialect=dialect_named("hermes-json"), tools=TOOLS)).calls) == 2
