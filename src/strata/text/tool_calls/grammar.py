"""The grammar of a reply that must call tools, or may call them only as their schemas say: text for llguidance (Lark).

Knows what may surround calls; how one is written is the dialect's matter, and enforcing it `sampling/grammar.py`'s.
"""

import re
from collections.abc import Sequence

from strata.errors import RequestError
from strata.text.reasoning import ReasoningMarkers
from strata.text.tokenizer import Tokenizer
from strata.text.tool_calls.dialect import Dialect, Tool
from strata.text.tool_calls.grammar_text import LINE, literal

# A small model that must call goes on calling, and nothing else ends its reply.
MOST_REQUIRED_CALLS = 8
_ANY_TEXT = r"/(.|\n)*/"


def tool_grammar(
    dialect: Dialect,
    tools: Sequence[Tool],
    tokenizer: Tokenizer,
    is_required: bool,
    is_parallel: bool = True,
    reasoning: ReasoningMarkers | None = None,
) -> str:
    """The Lark grammar of a reply with calls of these tools and no others.

    `is_required`: the reply is nothing but calls; otherwise they are optional, and content may stand in front of them.
    `is_parallel`: there may be more than one; where calls are required, at most `MOST_REQUIRED_CALLS`. `reasoning`:
    markers of reasoning that may come first; leave it out where the grammar holds only behind the reasoning
    (`GrammarSpec.begins_after`). A tool that a request names is the only one in `tools`. Raises RequestError if there
    is none.
    """
    if not tools:
        raise RequestError("tools is empty: a reply that must call a tool needs at least one")
    opening, closing = _marker(dialect.opening, tokenizer), _marker(dialect.closing, tokenizer)
    names = [rule_of(i) for i in range(len(tools))]
    often = f"{{0,{MOST_REQUIRED_CALLS - 1}}}" if is_required else "*"
    more = f" ({literal(LINE)} {opening} call){often}" if is_parallel else ""
    lines = [
        f"start: {'thought? ' if reasoning is not None else ''}{'NEWLINES calls' if is_required else 'answer'}",
        f"calls: {opening} call{more}",
        f"call: ({' | '.join(names)}) {closing}",
        r"NEWLINES: /\n{0,2}/",
    ]
    if not is_required:
        lines += _answer(dialect, tokenizer, more)
    if reasoning is not None:
        lines += _thought(reasoning, tokenizer)
    for tool, name in zip(tools, names, strict=True):
        lines += dialect.call_rules(tool, name)
    return "\n".join(lines)


def rule_of(index: int) -> str:
    """The rule of the calls of one of the tools; names of rules made from it begin with it and an underscore."""
    return f"tool_{index}"


def _marker(marker: str, tokenizer: Tokenizer) -> str:
    """A marker that is one token must be that token: `reply.py` takes no other spelling. Nothing for none."""
    if not marker:
        return ""
    token_id = tokenizer.token_id(marker)
    return literal(marker) if token_id is None else f"<[{token_id}]>"


def _answer(dialect: Dialect, tokenizer: Tokenizer, more: str) -> list[str]:
    """Content, then calls or none. A marker's token is no text; one that is spelled ends the content where it comes."""
    if tokenizer.token_id(dialect.opening) is not None:
        return ["answer: CONTENT calls?", f"CONTENT: {_ANY_TEXT}"]
    spelled = _in_regex(dialect.opening)
    return [
        f"answer: CONTENT | content_and_opening call{more}",
        rf"CONTENT: {_ANY_TEXT} & ~/(.|\n)*{spelled}(.|\n)*/",
        rf"content_and_opening[lazy]: /(.|\n)*{spelled}/",
    ]


def _thought(reasoning: ReasoningMarkers, tokenizer: Tokenizer) -> list[str]:
    opening, closing = _marker(reasoning.opening, tokenizer), _marker(reasoning.closing, tokenizer)
    if tokenizer.token_id(reasoning.closing) is not None:
        return [f"thought: {opening} THOUGHT {closing}", f"THOUGHT: {_ANY_TEXT}"]
    spelled = _in_regex(reasoning.closing)
    return [f"thought: {opening} thinking", rf"thinking[lazy]: /(.|\n)*{spelled}/"]


def _in_regex(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
