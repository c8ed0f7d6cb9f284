"""A value in Qwen's XML ends where its tags say so, not where it speaks of tags."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.text.tool_calls.xml_value import ParameterValue, has_any
from tests.text.reply_tools import pieces

TEXT = frozenset(("string",))


def value_of(raw: str, is_block: bool = True, cuts: list[int] = []) -> tuple[str, str] | None:  # noqa: B006
    """The value in front of its end, and what stands there; None if it does not end."""
    value, said, waiting, fed = ParameterValue(TEXT, is_block, frozenset(["knots"])), "", "", 0
    for piece in pieces(raw, cuts):
        waiting += piece
        fed += len(piece)
        end, tag = value.end_in(waiting, 0)
        if tag is not None:
            return json.loads(said + value.finish(waiting[:end])), raw[fed - len(waiting) + tag :]
        said += value.say(waiting[:end])
        waiting = waiting[end:]
    return None


@pytest.mark.parametrize(
    ("raw", "is_block", "value"),
    [
        ("Kiel\n</parameter>\n</function>", True, "Kiel"),
        ("Kiel\n\n</parameter>\n<parameter=knots>", True, "Kiel\n"),
        ("</parameter>\n</function>", True, ""),
        ("a </parameter> b\n</parameter>\n</function>", True, "a </parameter> b"),
        ("a </parameter></function> b\n</parameter>\n</function>", True, "a </parameter></function> b"),
        ("Kiel</parameter>\n</function>", True, "Kiel"),
        ("Kiel</parameter></function>", False, "Kiel"),
        ("Kiel</function></tool_call>", False, "Kiel"),
        ("a\n<parameter=knots>", True, "a"),
        ("a\n<parameter=knots>", False, "a\n"),
        ("a <parameter=knots>\n</parameter></tool_call>", True, "a <parameter=knots>"),
        ("a\n<parameter=port>\n</parameter></tool_call>", True, "a\n<parameter=port>"),
        ("a\n</function>\n</tool_call>", True, "a"),
        ("a\n</function>\nb\n</parameter>\n</tool_call>", True, "a\n</function>\nb"),
    ],
)
def test_a_value_ends_where_what_follows_may_follow(raw: str, is_block: bool, value: str) -> None:
    for cuts in ([], list(range(len(raw)))):
        found = value_of(raw, is_block, cuts)
        assert found is not None and found[0] == value
        assert raw.startswith(value) and raw.endswith(found[1]) and found[1].startswith("<")


@pytest.mark.parametrize(
    "raw", ["", "a", "a\n</parameter>", "a\n</parameter>\n", "a\n</parameter>\n<para", "a\n<param"]
)
def test_a_value_does_not_end_before_it_is_certain(raw: str) -> None:
    assert value_of(raw) is None


FRAGMENTS = st.sampled_from(
    ["a", "\n", " ", "</parameter>", "<parameter=knots>", "<parameter=x>", "</function>", "</tool_call>", "<"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAGMENTS, max_size=10).map("".join), st.booleans(), st.lists(st.integers(0, 60), max_size=8))
def test_any_cut_finds_the_same_end(raw: str, is_block: bool, cuts: list[int]) -> None:
    assert value_of(raw, is_block, cuts) == value_of(raw, is_block)


def test_a_literal_stands_there_or_may_or_does_not() -> None:
    assert has_any(("</a>", "<b>"), "x<b>y", 1) is True
    assert has_any(("</a>", "<b>"), "x</", 1) is None
    assert has_any(("</a>", "<b>"), "x</b", 1) is False
