"""Blocks of Hermes hold one object or several, and end without their marker too."""

from strata.text.tool_calls.hermes_json import HermesBlock, HermesJson
from tests.text.reply_tools import JSON, SAIL_JSON, Seen, read, whole


def test_it_is_the_dialect_of_that_name() -> None:
    assert isinstance(JSON.dialect, HermesJson) and isinstance(JSON.dialect.block([]), HermesBlock)


def test_several_objects_in_a_block_are_several_calls() -> None:
    body = '{"name": "sail", "arguments": {}}\n{"name": "log", "arguments": {}}'
    assert read(f"<tool_call>{body}</tool_call>", JSON).calls == [whole("sail"), whole("log")]


def test_a_missing_closing_marker_ends_with_the_call() -> None:
    calls = SAIL_JSON.replace("\n</tool_call>", "\n") * 2
    assert read(calls, JSON).calls == [whole("sail", port="Kiel")] * 2
    late = read(SAIL_JSON.replace("\n</tool_call>", " so\n</tool_call>"), JSON)
    assert late == Seen(content=" so", calls=[whole("sail", port="Kiel")])
