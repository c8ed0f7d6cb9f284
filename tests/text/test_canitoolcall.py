"""The recorded replies of the package canitoolcall, for the dialects that Strata reads: each is read as it should be.

A client is two things here. One takes whole calls: it leaves out a call that was cut off, as a reply that is not
streamed does. The other takes every piece as it comes: to it a call that was cut off has begun, and canitoolcall, which
wants such calls withheld, counts that as a failure; those replies, and no others, are named below.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from strata.text.reasoning import ReasoningMarkers
from strata.text.reply import ReplyFormat, ReplyReader
from strata.text.tool_calls.dialect import Tool
from strata.text.tool_calls.dialects import dialect_named
from strata.text.whole_calls import WholeCalls
from tests.text.reply_tools import MARKED, SPELLED, events_of, seen, tokens

canitoolcall = pytest.importorskip("canitoolcall", reason="the extra dev has it")
from canitoolcall import checks, fixtures  # noqa: E402
from canitoolcall.results import Observation, ParsedToolCall, ParseResult, Status  # noqa: E402

DIALECT_OF_FAMILY = {"qwen3-hermes": "hermes-json", "qwen3-xml": "qwen-xml", "llama": "llama-json"}
MARKERS = ReasoningMarkers("<think>", "</think>")
# The family llama has two dialects; Llama 4's, calls in Python, belongs to no model that runs here.
CASES = [
    fixture
    for fixture in fixtures.load_fixtures(families=list(DIALECT_OF_FAMILY))
    if "x-llama-pythonic" not in fixture.tags
]
FAMILIES = fixtures.load_families()

# Cut off by max_tokens behind the name of a call.
CUT_IN_A_CALL = {
    "qwen3-hermes/bug-sglang-30480-truncated-mid-arguments",
    "qwen3-hermes/vllm-invalid-json-missing-brace",
    "qwen3-hermes/truncated-mid-arguments-no-thinking",
    "qwen3-hermes/truncated-mid-arguments-thinking",
    "qwen3-hermes/truncated-second-parallel-call",
    "qwen3-xml/q38-truncated-in-parameter",
    "llama/l3-truncated-inside-parameters",
}
# White space between text and a call belongs to the call here; canitoolcall counts that as a difference in white space.
SPACE_IN_FRONT = {"llama/l3-sglang-text-before-python-tag"}


def read(fixture: Any, tokenizer: Any, cuts: Sequence[int], whole: bool) -> Any:
    """One reading of a recorded reply, as canitoolcall wants it told."""
    family = FAMILIES[fixture.family]
    prompt = fixture.generation_prompt or family.reference_for(fixture.reference_model).default_generation_prompt
    tools = [Tool(t["function"]["name"], t["function"].get("parameters") or {}) for t in fixture.tools]
    form = ReplyFormat(MARKERS, prompt.endswith("<think>\n"), dialect_named(DIALECT_OF_FAMILY[fixture.family]), tools)
    reader = ReplyReader(tokenizer, form)
    events = events_of(reader, tokens(tokenizer, fixture.raw_output, cuts))
    result = seen(WholeCalls().feed(events) if whole else events)
    calls = tuple(ParsedToolCall(name, arguments) for name, arguments, _ in result.calls)
    return ParseResult(content=result.content or None, reasoning_content=result.reasoning or None, tool_calls=calls)


def observed(fixture: Any, streams_whole_calls: bool) -> Any:
    """The reply at once, by its tokens, and cut in other ways; its markers as tokens and spelled."""
    random = Random(fixture.id)
    length = len(fixture.raw_output)
    ways: dict[str, tuple[Any, list[int]]] = {
        "one": (MARKED, []),
        "token": (SPELLED, []),
        "special": (SPELLED, [*range(length)]),
    }
    for seed in range(1, 5):
        ways[f"rand:{seed}:8"] = (MARKED, [random.randrange(length + 1) for _ in range(length // 3)])
    streams = {name: read(fixture, tokenizer, cuts, streams_whole_calls) for name, (tokenizer, cuts) in ways.items()}
    return Observation(read(fixture, MARKED, [], whole=True), streams)


def problems(fixture: Any, streams_whole_calls: bool) -> list[str]:
    rows = checks.run_checks(fixture, FAMILIES[fixture.family], observed(fixture, streams_whole_calls))
    assert rows
    good = {Status.PASS, Status.SOFT_PASS} if fixture.id in SPACE_IN_FRONT else {Status.PASS}
    bad = [row for row in rows if row.status not in good]
    return [f"{row.check} {row.strategy} {row.status.value}: {row.detail}" for row in bad]


def test_the_package_brings_its_replies() -> None:
    families = [fixture.family for fixture in CASES]
    assert [families.count(family) for family in DIALECT_OF_FAMILY] == [50, 54, 24]


@pytest.mark.parametrize("fixture", CASES, ids=lambda fixture: fixture.id)
def test_whole_calls_are_read_as_they_should_be(fixture: Any) -> None:
    assert problems(fixture, streams_whole_calls=True) == []


@pytest.mark.parametrize("fixture", CASES, ids=lambda fixture: fixture.id)
def test_calls_in_pieces_are_read_as_they_should_be(fixture: Any) -> None:
    found = problems(fixture, streams_whole_calls=False)
    assert (found != []) == (fixture.id in CUT_IN_A_CALL), found
