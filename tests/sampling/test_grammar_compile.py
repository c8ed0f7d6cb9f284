"""Every language of grammars is enforced, what cannot be is refused with a reason, and nobody waits without an end."""

import json
import re
import sys
import threading
import time
from collections.abc import Callable

import pytest

from strata.errors import EngineError, RequestError
from strata.sampling import grammar_compile
from strata.sampling.grammar_compile import COMPILE_SECONDS, GrammarFactory, Vocabulary
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from tests.sampling.grammars import accepts, allowed_ids, compiled, factory, next_texts, vocabulary

JSON, REGEX, LARK, GBNF = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK, GrammarKind.GBNF
POINT = '{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false}'
GBNF_LIST = 'root ::= "[" item ("," item)* "]"  # a list\nitem ::= [0-9]+ | "\\u0434\\x41" | [\\u0430-\\u044f]'


@pytest.mark.parametrize(
    ("kind", "source", "right", "wrong"),
    [
        (GrammarKind.JSON_OBJECT, "", ["{}", '{"a":[1,{"é":null}]}', "{\n}"], ["[]", "{", " {}", "{}x"]),
        (JSON, POINT, ['{"x": 12}', '{\n    "x": -7\n}'], ["{}", '{"x":1.5}', '{"x":1,"y":2}', '{"x":1', "null"]),
        (JSON, "true", ['"a"', "12", "[]", "null"], ["", "a"]),
        (JSON, '{"enum": ["ab", 12, null]}', ['"ab"', "12", "null"], ['"a"', "1", "ab"]),
        (REGEX, "a/b|(x\\d){2}", ["a/b", "x1x2"], ["a", "x1", "a/bx"]),
        (REGEX, "^[^a]é?$", ["b", "bé", "é"], ["a", "", "bb"]),
        (REGEX, "line\nend", ["line\nend"], ["line end"]),
        (LARK, 'start: "a" b+ "c"\nb: /[0-9]+/ ";"', ["a1;c", "a12;3;c"], ["ac", "a1c"]),
        (LARK, f"start: %json {POINT}", ['{"x":1}'], ["{}"]),
        (GBNF, GBNF_LIST, ["[1,23]", "[дA]", "[б,4]"], ["[]", "[Ю]", "[1,]", "[д]x"]),
        (GBNF, 'root ::= (root2 | "x"){2,3}\nroot2 ::= "\\"" [^"\\\\\\x7F\\x00-\\x1F]* "\\""', ['x"a"', "xxx"], ["x"]),
    ],
)
def test_what_a_grammar_says_is_enforced(kind: GrammarKind, source: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not accepts(compiled(kind, source), text)] == []
    assert [text for text in wrong if accepts(compiled(kind, source), text)] == []
    assert compiled(kind, source).notices == ()


def test_white_space_in_json_comes_to_an_end() -> None:
    for white in (b" ", b"\n" + b" " * 16):
        grammar = compiled(GrammarKind.JSON_OBJECT, "")
        grammar.commit(b"{" + white)
        assert next_texts(grammar) == {b'"', b'":', b'"a"', b"}"}


def test_a_fault_in_a_rule_that_has_a_name_is_told_under_it_and_without_the_grammar() -> None:
    named = (("tool_0", "tools: the schema of 'see'"), ("tool_1", "tools: the schema of 'look'"))
    for schema, words in (
        ('{"type": "bogus"}', "Invalid type: bogus"),
        ('{"$ref": "http://x/y"}', "$ref 'http://x/y' points outside the schema; put what it names under $defs"),
    ):
        source = f'start: tool_0 | tool_1\ntool_0: "a"\ntool_1: "b" tool_1_arguments\ntool_1_arguments: %json {schema}'
        with pytest.raises(RequestError) as refusal:
            factory().compile(GrammarSpec(LARK, source, named_rules=named))
        assert str(refusal.value) == f"tools: the schema of 'look' cannot be enforced: {words}"


def test_a_schema_that_is_relaxed_says_what_is_not_enforced() -> None:
    meeting = compiled(JSON, '{"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]}')
    assert accepts(meeting, "5") and "oneOf" in meeting.notices[0] and "relaxed options" in meeting.notices[0]
    ignored = compiled(JSON, '{"type": "string", "not": {"const": "a"}, "format": "credit-card", "maxLength": 2}')
    assert accepts(ignored, '"a"')
    assert not accepts(compiled(JSON, '{"type": "string", "not": {"const": "a"}, "maxLength": 2}'), '"abc"')
    assert "not" in ignored.notices[0] and "credit-card" in ignored.notices[0]


def test_a_schema_cannot_relax_itself() -> None:
    source = '{"type": "string", "not": {"const": "a"}, "x-guidance": {"lenient": true}}'
    assert len(compiled(JSON, source).notices) == 1


DEEP = 10_000
ADVERSARIAL: dict[str, tuple[GrammarKind, str, str | None]] = {
    # kind, source, what the refusal says; None: it compiles
    "nested 10,000 deep": (JSON, '{"items":' * DEEP + "{}" + "}" * DEEP, "nested too deeply"),
    "nested 65 deep": (JSON, '{"items":' * 64 + "{}" + "}" * 64, "at most 64 levels"),
    "nested 64 deep": (JSON, '{"items":' * 63 + "{}" + "}" * 63, None),
    "enum of 20,000": (JSON, json.dumps({"enum": [f"{i * 7919 % 100_003}" for i in range(20_000)]}), None),
    "enum of 60,000": (JSON, json.dumps({"enum": list(range(60_000))}), "at most 262,144"),
    "15,000 properties": (JSON, json.dumps({"properties": {f"{i}": {} for i in range(15_000)}}), "at most 2,000"),
    "maxItems 10^9": (JSON, '{"type": "array", "maxItems": 1000000000}', None),
    "maxItems 1e9": (JSON, '{"type": "array", "maxItems": 1e9}', "maxItems"),
    "minItems 10^9": (JSON, '{"type": "array", "minItems": 1000000000}', None),
    "maxLength 10^9": (JSON, '{"type": "string", "maxLength": 1000000000}', None),
    "minProperties 10^9": (JSON, '{"type": "object", "minProperties": 1000000000}', None),
    "a reference to itself": (JSON, '{"$ref": "#"}', "no text fulfils it"),
    "references in a circle": (JSON, '{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}',
                               "no text fulfils it"),
    "recursion without a base": (JSON, '{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}', None),
    "a chain of 1,900 references": (JSON, json.dumps({"$defs": {"a0": {}, **{
        f"a{i}": {"type": "object", "properties": {"p": {"$ref": f"#/$defs/a{i - 1}"}}} for i in range(1, 1_900)
    }}, "$ref": "#/$defs/a1899"}), None),
    "a reference to the network": (JSON, '{"$ref": "https://example.com/x"}', "example.com"),
    "conditions that multiply": (JSON, json.dumps({"allOf": [
        {"anyOf": [{"properties": {f"p{i}{j}": {"type": "integer"}}} for j in range(6)]} for i in range(10)
    ]}), "schema too large"),
    "invalid JSON": (JSON, '{"type": ', "not valid JSON"),
    "NaN": (JSON, '{"const": NaN}', "NaN is not a JSON number"),
    "1e999": (JSON, '{"maximum": 1e999}', "too large"),
    "a list": (JSON, "[]", "must be an object"),
    "false": (JSON, "false", "no text fulfils"),
    "half a surrogate pair": (JSON, '{"const": "\\ud800"}', "cannot be enforced"),
    "catastrophic regex": (REGEX, "^(a+)+(a|a?)+b$", None),
    "catastrophic pattern": (JSON, '{"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}', None),
    "exponential regex": (REGEX, "((((a{1,100}){1,100}){1,100}){1,100}){1,100}", None),
    "a large automaton": (REGEX, "(a|b)*a(a|b){25}", None),
    "regex nested 20,000 deep": (REGEX, "(" * 20_000 + "a" + ")" * 20_000, "cannot be enforced"),
    "a regex of 3 KiB": (REGEX, "(a|b)?" * 500, "too many expressions"),
    "a long regex": (REGEX, "[a-z]b" * 2_000, None),
    "a regex of 240 KiB": (REGEX, "(a|b)?" * 40_000, "too big"),
    "a pattern of 4 KiB": (JSON, json.dumps({"pattern": "^" + "(a|b)?" * 682}), "too many expressions"),
    "a pattern of 240 KiB": (JSON, json.dumps({"pattern": "(a|b)?" * 40_000}), "at most 4,096"),
    "a key's pattern of 240 KiB": (JSON, json.dumps({"patternProperties": {"(a|b)?" * 40_000: {}}}), "at most 4,096"),
    "an open group": (REGEX, "(", "unclosed group"),
    "a backslash at the end": (REGEX, "a\\", "backslash"),
    "look-ahead": (REGEX, "(?=a)b", "look-ahead"),
    "no rule": (LARK, "", "no start rule"),
    "a rule of itself": (LARK, "start: start", "no text fulfils it"),
    "left recursion": (LARK, 'start: start start | "b"', None),
    "an endless ambiguity": (LARK, 'start: s\ns: s s s | s s | "a" | ', None),
    "a grammar that names itself": (LARK, "start: @body", "no text fulfils it"),
    "a chain of rules": (LARK, "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(9_999)) + 'r9999: "x"',
                         None),
    "doubling rules": (LARK, "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(60)) + 'T60: "x"',
                       "too big"),
    "Lark nested 20,000 deep": (LARK, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "too deeply nested"),
    "GBNF nested 5,000 deep": (GBNF, "root ::= " + "(" * 5_000 + '"a"' + ")" * 5_000, "nested too deeply"),
    "GBNF without its rule": (GBNF, "root ::= missing", "missing"),
    "GBNF that stops short": (GBNF, 'root ::= "a\\', "gbnf grammar cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_no_grammar_hangs_or_ends_the_process(name: str) -> None:
    kind, source, refusal = ADVERSARIAL[name]
    started = time.monotonic()
    if refusal is None:
        decode_some(kind, source)
    else:
        with pytest.raises(RequestError, match=re.escape(refusal)) as raised:
            compiled(kind, source)
        assert len(str(raised.value)) < 500
    assert time.monotonic() - started < COMPILE_SECONDS


def decode_some(kind: GrammarKind, source: str) -> None:
    """A few dozen tokens, the first that may come; a grammar may give up in the middle, with a sentence."""
    grammar = compiled(kind, source)
    try:
        for _ in range(40):
            if grammar.is_finished:
                break
            grammar.commit(allowed_ids(grammar.masks()[0])[-1:])
    except EngineError as error:
        assert "grammar cannot go on" in str(error)


def test_without_the_package_a_grammar_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"package llguidance.*pip install 'strata-moe\[server\]'"):
        GrammarFactory(vocabulary).submit(GrammarSpec(REGEX, "a"))


def test_a_model_without_an_end_has_no_grammars() -> None:
    with pytest.raises(RequestError, match="end-of-text token"):
        GrammarFactory(lambda: Vocabulary([b"a"], frozenset(), frozenset(), 1)).compile(GrammarSpec(REGEX, "a"))


def test_who_waits_is_answered_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compile, "COMPILE_SECONDS", 0.05)
    go_on, entered = threading.Event(), threading.Event()

    def slow() -> Vocabulary:
        entered.set()
        go_on.wait()
        return vocabulary()

    factory = GrammarFactory(slow)
    try:
        stuck = [factory.submit(GrammarSpec(REGEX, "a")) for _ in range(3)]
        entered.wait()
        with pytest.raises(RequestError, match="other grammars took too long"):
            stuck[2].result()
        assert stuck[0].is_done
        with pytest.raises(RequestError, match=r"not compiled within 0\.05 s"):
            stuck[0].result()
    finally:
        go_on.set()
    monkeypatch.setattr(grammar_compile, "COMPILE_SECONDS", 10.0)
    assert accepts(factory.compile(GrammarSpec(REGEX, "a")), "a")


def test_tokens_are_prepared_once_and_a_failure_is_tried_again() -> None:
    calls: list[Callable[[], Vocabulary]] = []

    def flaky() -> Vocabulary:
        calls.append(vocabulary)
        if len(calls) == 1:
            raise RequestError("not yet")
        return vocabulary()

    factory = GrammarFactory(flaky)
    with pytest.raises(RequestError, match="not yet"):
        factory.compile(GrammarSpec(REGEX, "a"))
    for _ in range(3):
        factory.compile(GrammarSpec(REGEX, "a"))
    assert len(calls) == 2


def test_warming_up_prepares_the_tokens_beside_the_caller() -> None:
    asked = threading.Event()

    def told() -> Vocabulary:
        asked.set()
        return vocabulary()

    GrammarFactory(told).warm_up()
    assert asked.wait(10)
