"""Conversations to prompts: what is shown, where a grammar begins to hold, and how the reply is then read."""

import dataclasses

import pytest

from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.server.errors import ApiError
from strata.server.text_side import Calls, Conversation, TextSide
from strata.settings import ServerSettings, describe
from strata.text.tool_calls.dialect import Tool
from strata.text.tool_calls.dialects import DIALECTS
from tests.server.fake_engine import tokenizer_files

HI = [{"role": "user", "content": "hi"}]
SCHEMA = GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
LOOK = {"type": "function", "function": {"name": "look", "parameters": {}}}


def marker_ids(side: TextSide) -> tuple[int | None, ...]:
    return tuple(side.tokenizer.token_id(marker) for marker in ("<think>", "</think>"))


def calls(**changes: object) -> Calls:
    return dataclasses.replace(Calls(shown=(LOOK,), allowed=(Tool("look"),)), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def text():
    side = TextSide(tokenizer_files())
    yield side
    side.close()


@pytest.fixture(scope="module")
def thinking():
    """A model whose template opens the reasoning."""
    files = tokenizer_files()
    template = (files.chat_template or "") + "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}"
    side = TextSide(dataclasses.replace(files, chat_template=template))
    yield side
    side.close()


def test_a_grammar_holds_from_the_first_token_or_behind_the_reasoning(text: TextSide, thinking: TextSide) -> None:
    plain = text.chat(Conversation(HI), SCHEMA)
    assert not plain.format.begins_in_reasoning
    assert plain.grammar == dataclasses.replace(SCHEMA, reasoning=marker_ids(text))
    inside = thinking.chat(Conversation(HI), SCHEMA)
    end = thinking.tokenizer.token_id("</think>")
    assert inside.grammar == dataclasses.replace(SCHEMA, begins_after=end) and inside.format.begins_in_reasoning


def test_reasoning_may_come_first_unless_the_prompt_has_closed_it_or_the_reply_has_begun(text: TextSide) -> None:
    files = tokenizer_files()
    closed = (
        files.chat_template or ""
    ) + "{%- if add_generation_prompt %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    side = TextSide(dataclasses.replace(files, chat_template=closed))
    try:
        assert side.chat(Conversation(HI), SCHEMA).grammar == SCHEMA
        required = side.chat(Conversation(HI, calls(is_required=True))).grammar
        assert required is not None and "thought" not in required.source
    finally:
        side.close()
    begun = Conversation([*HI, {"role": "assistant", "content": "{"}], continues_last=True)
    assert text.chat(begun, SCHEMA).grammar == SCHEMA


@pytest.mark.parametrize("name", ["auto", "hermes-json", "qwen-xml", "llama-json", "none"])
def test_the_dialect_of_calls_can_be_set(name: str) -> None:
    side = TextSide(tokenizer_files(), name)
    try:
        if name == "none":
            with pytest.raises(ApiError, match="--tool-dialect"):
                side.chat(Conversation(HI, calls()))
        else:
            dialect = side.chat(Conversation(HI, calls())).format.dialect
            assert dialect is not None and dialect.name == ("hermes-json" if name == "auto" else name)
    finally:
        side.close()


def test_the_setting_offers_every_dialect() -> None:
    _, limits = describe(ServerSettings)["tool_dialect"]
    assert limits.choices == ("auto", "none", *(dialect.name for dialect in DIALECTS))


def test_calls_are_read_where_tools_were_offered_and_forced_where_they_must_be(text: TextSide) -> None:
    offered = text.chat(Conversation(HI, calls()))
    assert offered.format.tools and offered.grammar is None and offered.most_calls is None
    forced = text.chat(Conversation(HI, calls(is_required=True, is_parallel=False)))
    assert forced.grammar is not None and forced.grammar.kind is GrammarKind.LARK
    assert forced.most_calls == 1
    strict = text.chat(Conversation(HI, calls(is_strict=True)))
    assert strict.grammar is not None and "answer" in strict.grammar.source


def test_calls_or_json_is_one_grammar(text: TextSide) -> None:
    both = text.chat(Conversation(HI, calls()), SCHEMA)
    assert both.grammar is not None
    lines = both.grammar.source.splitlines()
    assert lines[0] == "start: calling | said"
    assert lines[1] == 'said: %json {"type": "object"}'
    assert sum(line.startswith("start:") for line in lines) == 1
    with pytest.raises(ApiError, match="do not go together"):
        text.chat(Conversation(HI, calls()), GrammarSpec(GrammarKind.REGEX, "a"))


def test_a_continued_message_ends_the_prompt_even_with_white_space_or_control_words(text: TextSide) -> None:
    for content in ("I think ", "I think\n", "a <|im_end|> b"):
        conversation = Conversation([*HI, {"role": "assistant", "content": content}], continues_last=True)
        ids = text.chat(conversation).token_ids
        assert text.tokenizer.decode(ids, show_special=True).endswith(content)
        assert ids.count(text.tokenizer.token_id("<|im_end|>")) == 1  # of the user's turn


def test_a_model_without_a_template_says_so() -> None:
    side = TextSide(dataclasses.replace(tokenizer_files(), chat_template=None))
    with pytest.raises(ApiError, match="no chat template"):
        side.chat(Conversation(HI))
    assert side.plain("hi").token_ids


def test_a_model_whose_template_knows_no_tools_says_so() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    side = TextSide(dataclasses.replace(tokenizer_files(), chat_template=template))
    try:
        with pytest.raises(ApiError, match="knows no tools"):
            side.chat(Conversation(HI, calls()))
    finally:
        side.close()
