"""Calls of tools are found wherever they stand, whatever is wrong with them, and nothing of a reply is lost."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import SettingsError
from strata.sampling.draw import Draw
from strata.text.reply import ReplyFormat, ReplyReader
from strata.text.reply_events import ToolArguments, ToolCallBegun, ToolCallEnded
from strata.text.tokenizer import Tokenizer
from strata.text.tool_calls.dialects import DIALECTS, dialect_named, dialect_of
from strata.text.whole_calls import WholeCalls
from tests.text.reply_tools import (
    JSON,
    LLAMA,
    MARKED,
    PYTHON_TAG,
    SAIL_JSON,
    SAIL_LLAMA,
    SAIL_XML,
    SPELLED,
    THINKING,
    TOOLS,
    XML,
    Seen,
    events_of,
    read,
    seen,
    tokens,
    whole,
)
from tests.text.templates import CHATML

CUTS = st.lists(st.integers(0, 80), max_size=8)


@pytest.mark.parametrize("tokenizer", [MARKED, SPELLED], ids=["marked", "spelled"])
@pytest.mark.parametrize(("form", "call"), [(JSON, SAIL_JSON), (XML, SAIL_XML)], ids=["json", "xml"])
def test_a_call_is_found_wherever_it_stands(form: ReplyFormat, call: str, tokenizer: Tokenizer) -> None:
    sail = whole("sail", port="Kiel")
    texts = {
        call: Seen(calls=[sail]),
        f"\n{call}\n": Seen(calls=[sail]),
        f"Off we go.\n\n{call}": Seen(content="Off we go.", calls=[sail]),
        f"a{call} b": Seen(content="a b", calls=[sail]),
        f"{call}\n{call}": Seen(calls=[sail, sail]),
        f"{call}{call}": Seen(calls=[sail, sail]),
        f"<think>\nto Kiel\n{call}": Seen(reasoning="to Kiel", calls=[sail]),
        f"<think>\nto Kiel\n{call}\nnow\n</think>\n\nDone.": Seen(
            reasoning="to Kiel\nnow", content="Done.", calls=[sail]
        ),
        f"<think>\nto Kiel\n</think>\n\n{call}": Seen(reasoning="to Kiel", calls=[sail]),
    }
    for text, expected in texts.items():
        assert read(text, form, tokenizer=tokenizer) == expected, text


def test_without_tools_a_call_is_content() -> None:
    form = ReplyFormat(THINKING, dialect=dialect_named("hermes-json"))
    assert read(SAIL_JSON, form) == Seen(content=SAIL_JSON)


def test_a_tool_that_was_not_offered_is_a_call() -> None:
    assert read(SAIL_JSON.replace("sail", "sink"), JSON).calls == [whole("sink", port="Kiel")]
    number = SAIL_XML.replace("sail", "sink").replace("Kiel", "1")
    assert read(number, XML).calls == [whole("sink", port="1")], "without a schema a value is text"


def test_arguments_come_as_they_are_written() -> None:
    reader = ReplyReader(MARKED, JSON, new_id=lambda: "id")
    events = [event for id_ in tokens(MARKED, SAIL_JSON, range(80)) for event in reader.feed(Draw(id_))]
    pieces = [event.text for event in events if isinstance(event, ToolArguments)]
    assert events[0] == ToolCallBegun(0, "id", "sail")
    assert len(pieces) > 5 and "".join(pieces) == '{"port": "Kiel"}'
    assert events[-1] == ToolCallEnded(0, True, '{"port": "Kiel"}')


def test_a_special_token_in_arguments_is_its_literal() -> None:
    ids = tokens(MARKED, SAIL_JSON.replace("Kiel", "Ki<|im_start|>el"))
    assert MARKED.token_id("<|im_start|>") not in ids  # a user's text does not become one
    at = len(tokens(MARKED, SAIL_JSON[: SAIL_JSON.index("el")]))
    ids = [*tokens(MARKED, SAIL_JSON)[:at], MARKED.token_id("<|im_start|>"), *tokens(MARKED, SAIL_JSON)[at:]]
    ids = [*MARKED.encode("So"), MARKED.token_id("<|im_start|>"), *ids]
    result = seen(events_of(ReplyReader(MARKED, JSON), ids))
    assert result.content == "So" and "<|im_start|>" in str(result.calls[0][1])


@pytest.mark.parametrize(("form", "call"), [(JSON, SAIL_JSON), (XML, SAIL_XML)], ids=["json", "xml"])
def test_a_call_that_is_cut_off_is_told_as_such(form: ReplyFormat, call: str) -> None:
    closed = call.rindex("}" if form is JSON else "</function>") + (1 if form is JSON else len("</function>"))
    named = call.index('{"port' if form is JSON else ">\n<parameter=port") + 1
    for length in range(1, len(call)):
        events = events_of(ReplyReader(MARKED, form), tokens(MARKED, call[:length]))
        result = seen(events)
        if "<tool_call>" not in call[:length]:
            continue
        assert result.content == ""
        assert [is_complete for _, _, is_complete in result.calls] == ([length >= closed] if length >= named else [])
        assert (result.unfinished != "") == (length < named)
        told = seen(WholeCalls().feed(events)).calls
        assert told == ([whole("sail", port="Kiel")] if length >= closed else [])


def test_whole_calls_move_up_where_one_is_left_out() -> None:
    gate = WholeCalls()
    broken = '<tool_call>{"name": "sail", "arguments": {"port": oops}}</tool_call>'
    told = gate.feed(events_of(ReplyReader(MARKED, JSON), tokens(MARKED, f"{broken}\n{SAIL_JSON}")))
    assert seen(told).calls == [whole("sail", port="Kiel")]
    assert [end.arguments for end in gate.left_out] == ['{"port": ']


def test_stop_strings_do_not_reach_into_calls() -> None:
    result = read(f"To Kiel\n{SAIL_JSON}\nKiel now", JSON, ["Kiel now", "arguments"])
    assert result == Seen(content="To Kiel\n", calls=[whole("sail", port="Kiel")], stop="Kiel now")


def test_a_stop_of_white_space_is_found_before_a_call() -> None:
    assert read(f"Off.\n\n{SAIL_JSON}", JSON, ["\n\n"]) == Seen(content="Off.", stop="\n\n")


def test_the_dialect_is_told_by_the_template() -> None:
    assert dialect_of(CHATML).name == "hermes-json"
    assert dialect_of("<tool_call>\n<function=example>\n<parameter=x>").name == "qwen-xml"
    assert dialect_of("<|python_tag|>").name == "llama-json"
    assert dialect_of("{{ messages }}") is dialect_of(None) is None
    assert [dialect_named(dialect.name) for dialect in DIALECTS] == list(DIALECTS)
    with pytest.raises(SettingsError, match="qwen-xml"):
        dialect_named("klingon")


FRAGMENTS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", "\n", " ", '{"name": "sail"', ', "arguments": ', '{"port": ',
     '"Kiel"', "}", "}}", "{", '"', "\\", "1", "tru", "a", "é🎉", "<", "<function=", "sail>", "<parameter=", "port>",
     "</parameter>", "</function>", "<function=sail>\n<parameter=port>\n", "\n</parameter>\n</function>\n", SAIL_JSON,
     SAIL_XML, SAIL_LLAMA, "<|python_tag|>", ";"]
)  # fmt: skip
ANYTHING = st.lists(FRAGMENTS | st.text(max_size=6), max_size=14).map("".join)
FORMS = st.sampled_from(
    [
        JSON,
        XML,
        LLAMA,
        ReplyFormat(THINKING, True, XML.dialect, TOOLS),
        ReplyFormat(None, False, JSON.dialect, TOOLS),
        ReplyFormat(THINKING, False, LLAMA.dialect, TOOLS),
    ]
)


@settings(max_examples=400, deadline=None)
@given(ANYTHING, CUTS, FORMS, st.sampled_from([(), ("Kiel",), ("\n\n", "a<")]))
def test_any_text_cut_anywhere_is_read_the_same(text: str, cuts: list[int], form: ReplyFormat, stops: Any) -> None:
    for tokenizer in (MARKED, SPELLED):
        plain = read(text, form, stops, (), tokenizer)
        assert read(text, form, stops, cuts, tokenizer) == plain
        for _, arguments, is_complete in plain.calls:
            assert not is_complete or isinstance(json.loads(str(arguments)), dict)


def letters(text: str) -> str:
    return "".join(text.replace("<think>", "").replace("</think>", "").split())


@settings(max_examples=300, deadline=None)
@given(ANYTHING, FORMS)
def test_nothing_of_a_reply_is_lost(text: str, form: ReplyFormat) -> None:
    """Without calls every letter comes out again; with calls, each character of the reply is one thing or another."""
    if form.dialect != LLAMA.dialect:
        text = text.replace(PYTHON_TAG, "")  # a special token of no meaning is no text
    ids = tokens(MARKED, text)
    written = MARKED.decode(ids, show_special=True)
    reader = ReplyReader(MARKED, form)
    result = seen(events_of(reader, ids))
    assert reader.understood == len(written)
    if not result.calls:
        assert letters(result.reasoning + result.content + result.unfinished) == letters(written)
