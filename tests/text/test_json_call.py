"""Calls written as JSON objects are read, with the slips that models make in them."""

import pytest

from strata.text.tool_calls.json_call import JsonCallReader
from strata.text.tool_calls.llama_json import LlamaBlock
from tests.text.reply_tools import JSON, Seen, read


def json_call(body: str) -> Seen:
    return read(f"<tool_call>{body}</tool_call>", JSON)


def test_both_dialects_of_json_read_the_same_objects() -> None:
    assert isinstance(LlamaBlock([]), JsonCallReader) and isinstance(JSON.dialect.block([]), JsonCallReader)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "sail", "arguments": {}}', "{}"),
        ('{"name": "sail"}', "{}"),
        ('{"name": "sail", "arguments": null}', "{}"),
        ('{"name": "sail", "parameters": {"port": "Kiel"}}', '{"port": "Kiel"}'),
        ('{"arguments": {"port": "Kiel"}, "name": "sail"}', '{"port": "Kiel"}'),
        ('{"id": 7, "type": "function", "name": "sail", "arguments": {"knots": 1e3}}', '{"knots": 1e3}'),
        (r'{"name": "sail", "arguments": "{\"port\": \"Kiel\"}"}', '{"port": "Kiel"}'),
        ('{"name": "sail", "arguments": {"port": "Kiel"}', '{"port": "Kiel"}'),
        ('{"name": "sail", "arguments": {"port": "a\nb\tc"}}', r'{"port": "a\nb\tc"}'),
        (r'{"name": "sail", "arguments": {"port": "\d+\u00e9"}}', r'{"port": "\\d+\u00e9"}'),
        ('{"name": "sail", "arguments": {"a": True, "b": [None, False]}}', '{"a": true, "b": [null, false]}'),
        ('{"name": "sail", "arguments": {"a": "</tool_call> {"}}', '{"a": "</tool_call> {"}'),
    ],
)
def test_json_calls_are_read_with_their_slips(body: str, arguments: str) -> None:
    assert json_call(body) == Seen(calls=[["sail", arguments, True]])


@pytest.mark.parametrize(
    "body",
    ["", "not json", "[]", "{}", '{"name": 7}', '{"name": ""}', '{"arguments": {}}', '{"name": "a", "arguments": [1]}',
     '{"name": "a", "arguments": "no"}', '{"name": "a" "arguments": {}}', "{name: 1}", '{"name": tru}', "{" * 500],
)  # fmt: skip
def test_what_is_no_call_is_text(body: str) -> None:
    text = f"So: <tool_call>{body}</tool_call> there"
    assert read(text, JSON) == Seen(content=text)


def test_a_call_that_breaks_ends_there_and_text_goes_on() -> None:
    broken = read('<tool_call>{"name": "sail", "arguments": {"port": oops}}</tool_call>', JSON)
    assert broken.calls == [["sail", '{"port": ', False]]
    assert broken.content == "oops}}"


def test_a_half_of_a_surrogate_pair_does_not_reach_a_name() -> None:
    assert json_call(r'{"name": "a\ud800", "arguments": {}}').calls == [["a\ufffd", "{}", True]]
