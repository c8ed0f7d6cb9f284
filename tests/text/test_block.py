"""Every reader of a block keeps the contract of `CallBlock`, whatever it is fed and however that is cut."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.text.tool_calls.block import BlockReader, behind_white
from strata.text.tool_calls.dialect import BlockStep, CallArguments, CallEnd, CallName, CallPart, Dialect
from strata.text.tool_calls.dialects import DIALECTS
from tests.text.reply_tools import SAIL_JSON, SAIL_LLAMA, SAIL_XML, TOOLS, pieces

BODIES = {"hermes-json": SAIL_JSON, "qwen-xml": SAIL_XML, "llama-json": SAIL_LLAMA}
FRAGMENTS = st.sampled_from(
    ["\n", " ", '{"name": "sail"', ', "arguments": {', '"port": ', '"Kiel"', "}", "}}", "</tool_call>", "x",
     "<tool_call>", "<function=sail>", "<parameter=port>", "</parameter>", "</function>", "</", ";", "null",
     "<|python_tag|>", "\\"]
)  # fmt: skip


@dataclass
class Fed:
    """What a block said about a text."""

    parts: Sequence[CallPart]
    settled: int
    rest: str
    is_closed: bool
    fed: str


def feed(dialect: Dialect, text: str, cuts: Sequence[int]) -> Fed:
    block = dialect.block(TOOLS)
    steps: list[BlockStep] = []
    fed = ""
    for piece in [dialect.opening, *pieces(text, cuts)]:
        fed += piece
        steps.append(block.feed(piece))
        settled = sum(step.settled for step in steps)
        assert settled <= len(fed)
        assert settled == 0 or any(isinstance(part, CallName) for step in steps for part in step.parts)
        if steps[-1].is_over:
            break
    else:
        steps.append(block.finish())
    assert steps[-1].is_over
    parts = [part for step in steps for part in step.parts]
    return Fed(parts, sum(step.settled for step in steps), steps[-1].rest, steps[-1].is_closed, fed)


def joined(parts: Sequence[CallPart]) -> list[list[object]]:
    """Each call: name, arguments, whether it is complete."""
    calls: list[list[object]] = []
    for part in parts:
        if isinstance(part, CallName):
            assert not calls or calls[-1][2] is not None
            calls.append([part.name, "", None])
        elif isinstance(part, CallArguments):
            calls[-1][1] = str(calls[-1][1]) + part.text
        else:
            assert isinstance(part, CallEnd)
            calls[-1][2] = part.is_complete
    assert all(call[2] is not None for call in calls)
    return calls


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(max_examples=150, deadline=None)
@given(st.lists(FRAGMENTS, max_size=10).map("".join), st.booleans(), st.lists(st.integers(0, 60), max_size=8))
def test_each_character_is_settled_or_given_back(
    dialect: Dialect, text: str, begins_well: bool, cuts: list[int]
) -> None:
    text = BODIES[dialect.name].removeprefix(dialect.opening) + text if begins_well else text
    whole, cut = feed(dialect, text, []), feed(dialect, text, cuts)
    for fed in (whole, cut):
        assert fed.settled + len(fed.rest) == len(fed.fed) and fed.fed.endswith(fed.rest)
    assert joined(cut.parts) == joined(whole.parts)
    assert (cut.settled, cut.is_closed) == (whole.settled, whole.is_closed)


def test_all_readers_share_one_base() -> None:
    assert all(isinstance(dialect.block(TOOLS), BlockReader) for dialect in DIALECTS)
    assert behind_white(" \r\n\ta ", 0) == 4 and behind_white("  ", 1) == 2
