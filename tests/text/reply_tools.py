"""Replies for the tests: text to the tokens a model would draw, cut anywhere, and events to what a client sees."""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.sampling.draw import Draw
from strata.text.reasoning import ReasoningMarkers
from strata.text.reply import ReplyFormat, ReplyReader
from strata.text.reply_events import (
    ContentText,
    ReasoningText,
    ReplyEvent,
    StopFound,
    ToolArguments,
    ToolCallBegun,
    ToolCallEnded,
    UnfinishedCall,
)
from strata.text.tokenizer import Tokenizer
from strata.text.tool_calls.dialect import Tool
from strata.text.tool_calls.dialects import dialect_named
from tests.text.small_tokenizers import MARKUP, byte_level
from tests.text.templates import CHATML

PYTHON_TAG = "<|python_tag|>"
_MARKUP = re.compile("(" + "|".join(map(re.escape, [*MARKUP, PYTHON_TAG])) + ")")


def _with_tag() -> dict[str, Any]:
    tag = dict(
        byte_level()["added_tokens"][0], content=PYTHON_TAG, id=len(byte_level()["model"]["vocab"]) + len(MARKUP)
    )
    return dict(byte_level(), added_tokens=[*byte_level()["added_tokens"], tag])


MARKED = Tokenizer(_with_tag(), chat_template=CHATML)  # every marker is a token, `<|python_tag|>` a special one
SPELLED = Tokenizer(
    dict(byte_level(), added_tokens=[t for t in byte_level()["added_tokens"] if t["content"] not in MARKUP])
)


TOOLS = [
    Tool("sail", {"type": "object", "properties": {"port": {"type": "string"}, "knots": {"type": "number"}}}),
    Tool("log", {"type": "object", "properties": {"text": {"type": ["string", "null"]}, "tags": {"type": "array"}}}),
]
THINKING = ReasoningMarkers("<think>", "</think>")
JSON = ReplyFormat(THINKING, dialect=dialect_named("hermes-json"), tools=TOOLS)
XML = ReplyFormat(THINKING, dialect=dialect_named("qwen-xml"), tools=TOOLS)
LLAMA = ReplyFormat(dialect=dialect_named("llama-json"), tools=TOOLS)
SAIL_JSON = '<tool_call>\n{"name": "sail", "arguments": {"port": "Kiel"}}\n</tool_call>'
SAIL_XML = "<tool_call>\n<function=sail>\n<parameter=port>\nKiel\n</parameter>\n</function>\n</tool_call>"
SAIL_LLAMA = '<|python_tag|>{"name": "sail", "parameters": {"port": "Kiel"}}'


@dataclass
class Seen:
    """What a client has at the end; calls as [name, arguments, whether complete]."""

    reasoning: str = ""
    content: str = ""
    calls: list[list[object]] = field(default_factory=list)
    unfinished: str = ""
    stop: str | None = None


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


def tokens(tokenizer: Tokenizer, text: str, cuts: Iterable[int] = ()) -> list[int]:
    """The ids of a reply; the tokenizer's markers become theirs, other text is cut at `cuts` before it is encoded."""
    ids: list[int] = []
    cuts = list(cuts)
    for part in _MARKUP.split(text):
        marker = tokenizer.token_id(part)
        ids += [marker] if marker is not None else [i for p in pieces(part, cuts) for i in tokenizer.encode(p)]
    return ids


def events_of(reader: ReplyReader, ids: Iterable[int]) -> list[ReplyEvent]:
    """Everything a reader says about a reply, which ends at a stop."""
    events: list[ReplyEvent] = []
    for token_id in ids:
        events += reader.feed(Draw(token_id))
        if reader.is_over:
            break
    return events + reader.finish()


def seen(events: Sequence[ReplyEvent]) -> Seen:
    """Gather events as a client does, and hold them to their contract."""
    result = Seen()
    for event in events:
        assert result.stop is None, "nothing comes behind a stop"
        match event:
            case ReasoningText(text):
                assert text
                result.reasoning += text
            case ContentText(text):
                assert text
                result.content += text
            case ToolCallBegun(index, call_id, name):
                assert index == len(result.calls) and call_id and name
                result.calls.append([name, "", None])
            case ToolArguments(index, text):
                assert index == len(result.calls) - 1 and text and result.calls[index][2] is None
                result.calls[index][1] += text  # type: ignore[operator]
            case ToolCallEnded(index, is_complete, arguments):
                assert index == len(result.calls) - 1 and result.calls[index][1:] == [arguments, None]
                result.calls[index][2] = is_complete
            case UnfinishedCall(text):
                result.unfinished += text
            case StopFound(stop, _):
                result.stop = stop
    assert all(call[2] is not None for call in result.calls), "every call ends"
    return result


def read(
    text: str,
    format: ReplyFormat,
    stops: Sequence[str] = (),
    cuts: Iterable[int] = (),
    tokenizer: Tokenizer = MARKED,
) -> Seen:
    """What a client sees of a reply."""
    return seen(events_of(ReplyReader(tokenizer, format, stops), tokens(tokenizer, text, cuts)))


def whole(name: str, **arguments: Any) -> list[object]:
    """A complete call as `Seen` has it."""
    return [name, json.dumps(arguments, ensure_ascii=False), True]
