"""Tokens of the engine as parts of replies: why a reply ends, which tokens count, what a failure becomes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from strata.engine.messages import Cancel
from strata.engine.request import TokenRequest
from strata.sampling.options import SamplingOptions
from strata.server.errors import ApiError
from strata.server.replies import Asked, Choice, collect, replies
from strata.server.service import EngineService
from strata.text.reasoning import reasoning_markers_of
from strata.text.reply import ReplyFormat, ReplyReader
from strata.text.tool_calls.dialect import Tool
from strata.text.tool_calls.dialects import dialect_of
from tests.server.fake_engine import FakeEngine, Reply, Script, tokenizer, tokenizer_files
from tests.server.test_service import QUICK, until

CALL = '<tool_call>\n{"name": "look", "arguments": {"word": "tea"}}\n</tool_call>'


def answer(reply: Reply, most_calls: int | None = None, **options: Any) -> tuple[Choice, FakeEngine]:
    """The reply as it is understood, and the engine that gave it."""
    ends = frozenset(tokenizer().eos_token_ids)
    request = TokenRequest((5, 6, 7), SamplingOptions(**options), ends)
    form = ReplyFormat(
        reasoning_markers_of(tokenizer()), False, dialect_of(tokenizer_files().chat_template), (Tool("look"),)
    )

    def new_reader() -> ReplyReader:
        return ReplyReader(tokenizer(), form, request.options.stop, ends, options.get("logprobs") is not None)

    return _run(Script(lambda asked: reply), Asked((request,), new_reader, most_calls))


def _run(script: Script, asked: Asked, act: Callable[[EngineService], None] | None = None) -> tuple[Choice, FakeEngine]:
    async def main() -> Choice:
        service = EngineService(script.launch, lambda facts: None, policy=QUICK)
        service.start()
        try:
            await until(lambda: service.condition.is_ready)
            choices = await collect(replies(service, asked), 1)
            await asyncio.sleep(0.05)
            assert service.running == 0
            return choices[0]
        finally:
            await service.close()

    return asyncio.run(main()), script.engine


def kept_tokens(engine: FakeEngine) -> list[int | None]:
    return [message.keep_tokens for message in engine.received if isinstance(message, Cancel)]


@pytest.mark.parametrize("window", [1, 3, 50])
def test_parts_do_not_depend_on_the_size_of_windows(window: int) -> None:
    text = f"<think>\nI wonder.\n</think>\n\nI look.\n{CALL}"
    choice, _ = answer(Reply(text, window=window))
    assert (choice.reasoning, choice.content) == ("I wonder.", "I look.")
    assert [(call.name, call.arguments) for call in choice.calls] == [("look", '{"word": "tea"}')]
    assert choice.over.reason == "tool_calls"
    assert choice.over.usage.completion_tokens == len(choice.token_ids)
    opening = tokenizer().encode("<think>\nI wonder.\n</think>", control_tokens=True)
    assert choice.over.reasoning_tokens == pytest.approx(len(opening), abs=2)


@pytest.mark.parametrize("window", [1, 3, 50])
def test_a_stop_string_keeps_the_tokens_that_lead_to_it_and_no_others(window: int) -> None:
    choice, engine = answer(Reply("one two three four five", window=window, seconds_a_token=0.01), stop=(" three",))
    assert (choice.content, choice.over.reason, choice.over.stop) == ("one two", "stop", " three")
    kept = tokenizer().encode("one two three")
    assert choice.token_ids == kept
    assert choice.over.usage.completion_tokens == len(kept)
    assert kept_tokens(engine) == [len(kept)]


@pytest.mark.parametrize("window", [1, 3, 50])
def test_what_comes_behind_a_stop_is_cut_off_also_where_the_engine_has_ended_by_itself(window: int) -> None:
    """All that the engine says is there before the first token is looked at."""
    choice, engine = answer(Reply("one two three four five", window=window), stop=(" three",))
    assert (choice.content, choice.over.reason, choice.over.stop) == ("one two", "stop", " three")
    kept = tokenizer().encode("one two three")
    assert choice.token_ids == kept
    assert kept_tokens(engine) == [len(kept)]


def test_a_reply_that_ends_by_itself_is_not_cut() -> None:
    _, engine = answer(Reply("one two three"), stop=("four",))
    assert [message for message in engine.received if isinstance(message, Cancel)] == []


def test_a_stop_that_only_the_end_makes_certain_is_cut_off_too() -> None:
    """The stop could still have become the marker of a call."""
    choice, engine = answer(Reply("one <tool"), stop=("<tool",))
    assert (choice.content, choice.over.reason, choice.over.stop) == ("one ", "stop", "<tool")
    kept = len(tokenizer().encode("one <tool"))
    assert choice.over.usage.completion_tokens == kept
    assert kept_tokens(engine) == [kept]


def test_a_reply_is_over_behind_the_calls_that_are_wanted() -> None:
    choice, engine = answer(Reply(f"{CALL}\n{CALL}", seconds_a_token=0.005), most_calls=1)
    assert len(choice.calls) == 1
    assert choice.over.reason == "tool_calls"
    assert kept_tokens(engine) == [choice.over.usage.completion_tokens]


@pytest.mark.parametrize(
    ("reply", "options", "reason"),
    [
        (Reply("one two"), {}, "stop"),
        (Reply("one two", ends_itself=False), {}, "length"),
        (Reply("one two three"), {"max_tokens": 2}, "length"),
        (Reply(CALL, ends_itself=False), {"max_tokens": 15}, "length"),
    ],
)
def test_why_a_reply_ended(reply: Reply, options: Any, reason: str) -> None:
    assert answer(reply, **options)[0].over.reason == reason


def test_a_call_that_never_got_a_name_is_left_out_and_reported() -> None:
    choice, _ = answer(Reply('I look.\n<tool_call>\n{"na', ends_itself=False))
    assert (choice.content, choice.calls, choice.over.reason) == ("I look.", [], "length")
    assert choice.over.notices == ("a call was cut off before the name of its tool was whole: it is left out",)


@pytest.mark.parametrize(
    ("ends_itself", "before", "reason"),
    [(False, "", "length"), (False, CALL, "length"), (True, "", "stop"), (True, CALL, "tool_calls")],
)
def test_a_call_that_was_cut_off_is_no_call(ends_itself: bool, before: str, reason: str) -> None:
    choice, _ = answer(Reply(before + CALL.removesuffix('"tea"}}\n</tool_call>'), ends_itself=ends_itself))
    assert [call.arguments for call in choice.calls] == ['{"word": "tea"}'] * (before != "")
    assert choice.over.reason == reason
    assert choice.over.notices == ("a call of 'look' was cut off: it cannot be run",)


@pytest.mark.parametrize(("is_callers", "status"), [(True, 400), (False, 500)])
def test_a_failure_is_the_callers_or_ours(is_callers: bool, status: int) -> None:
    with pytest.raises(ApiError, match="no good") as failure:
        answer(Reply(error="no good", is_callers_mistake=is_callers))
    assert failure.value.status == status


def test_tokens_are_shown_with_their_place_in_the_reply() -> None:
    choice, _ = answer(Reply("<think>\na\n</think>\n\nYes."), logprobs=1)
    assert "".join(token.text for token in choice.tokens if token.is_content) == "Yes."
    assert [token.draw.token_id for token in choice.tokens] == choice.token_ids
