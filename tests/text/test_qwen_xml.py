"""Calls in Qwen's XML are read, typed by their schemas, with the slips that models make in them."""

import pytest

from strata.sampling.draw import Draw
from strata.text.reply import ReplyReader
from strata.text.reply_events import ToolArguments
from tests.text.reply_tools import MARKED, SAIL_XML, XML, Seen, read, tokens, whole


def xml_call(body: str) -> list[list[object]]:
    result = read(f"<tool_call>\n{body}\n</tool_call>", XML)
    assert (result.content, result.reasoning, result.unfinished) == ("", "", "")
    return result.calls


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<function=sail>\n</function>", whole("sail")),
        ("<function=sail></function>", whole("sail")),
        ("<function=sail><parameter=port>Kiel</parameter><parameter=knots>7</parameter></function>",
         whole("sail", port="Kiel", knots=7)),
        ("<function=sail>\n<parameter=port>\nKiel\n<parameter=knots>\n7\n</parameter>\n</function>",
         whole("sail", port="Kiel", knots=7)),
        ("<function=sail>\n<parameter=port>\nKiel\n</function>", whole("sail", port="Kiel")),
        ("<function=sail>\n<parameter=port>\nKiel\n</parameter>", whole("sail", port="Kiel")),
        ("<function=sail>\n<parameter=port>\nKiel</parameter>\n</function>", whole("sail", port="Kiel")),
        ("<function=sail>\n<parameter=port>\n\n</parameter>\n</function>", whole("sail", port="")),
        ("<function=sail>\n<parameter=port>\n</parameter>\n</function>", whole("sail", port="")),
        ("<function=sail>\n<parameter=port>\n\n\n a\n\n</parameter>\n</function>", whole("sail", port="\n\n a\n")),
        ("<function=sail>\n<parameter=port>\na\n</parameter>\nb\n</parameter>\n</function>",
         whole("sail", port="a\n</parameter>\nb")),
        ("<function=sail>\n<parameter=port>\n<parameter=x>\n</function> y\n</parameter>\n</function>",
         whole("sail", port="<parameter=x>\n</function> y")),
        ("<function=sail>\n<parameter=port>\n1\n</parameter>\n<parameter=port>\n2\n</parameter>\n</function>",
         whole("sail", port="1")),
        ("<function=sail>\n<parameter=knots>\nfast\n</parameter>\n</function>", whole("sail", knots="fast")),
        ("<function=log>\n<parameter=text>\nnull\n</parameter>\n</function>", whole("log", text=None)),
        ("<function=log>\n<parameter=text>\nnull and void\n</parameter>\n</function>",
         whole("log", text="null and void")),
        ('<function=log>\n<parameter=tags>\n["a", {"b": 1}]\n</parameter>\n</function>',
         whole("log", tags=["a", {"b": 1}])),
    ],
)  # fmt: skip
def test_xml_calls_are_read_with_their_slips(body: str, expected: list[object]) -> None:
    assert xml_call(body) == [expected]


def test_a_function_without_its_marker_must_be_one_that_was_offered() -> None:
    bare = SAIL_XML.removeprefix("<tool_call>\n")
    assert read(f"Off.\n{bare}", XML) == Seen(content="Off.", calls=[whole("sail", port="Kiel")])
    for prose in (
        "Write <function=sink>\n</function>.",
        "I call <function=sail> now.",
        "<function=sail>\n",
        "<function=sai",
    ):
        assert read(prose, XML) == Seen(content=prose)
    assert read(f"<think>call <function=sail> now\n{bare}", XML).reasoning == "call <function=sail> now"


@pytest.mark.parametrize("body", ["", "sail", "<function=>", "<function=a\n>", "<funktion=sail>", "<parameter=a>"])
def test_what_is_no_xml_call_is_text(body: str) -> None:
    text = f"So: <tool_call>{body}</tool_call> there"
    assert read(text, XML) == Seen(content=text)


def test_a_string_of_xml_comes_as_it_is_written() -> None:
    reader = ReplyReader(MARKED, XML)
    ids = tokens(MARKED, "<tool_call>\n<function=log>\n<parameter=text>\nfair wind", range(80))
    pieces = [e.text for id_ in ids for e in reader.feed(Draw(id_)) if isinstance(e, ToolArguments)]
    assert "".join(pieces) == '{"text": "fair wind' and len(pieces) > 5
