"""A reply's tokens become reasoning, content and stops, the same however they are cut, and each as early as certain."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.sampling.draw import Draw
from strata.text.reasoning import ReasoningMarkers
from strata.text.reply import ReplyFormat, ReplyReader, new_call_id
from strata.text.reply_events import ContentText, ReasoningText, StopFound, TokenShown
from strata.text.tokenizer import Tokenizer
from tests.text.reply_tools import MARKED, SPELLED, Seen, events_of, read, seen, tokens

PLAIN = ReplyFormat()
THINKS = ReplyFormat(ReasoningMarkers("<think>", "</think>"))
GOES_ON_THINKING = ReplyFormat(THINKS.reasoning, begins_in_reasoning=True)
CUTS = st.lists(st.integers(0, 60), max_size=8)
PARTS = st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "a", "b", "ab", "é🎉", "<", "<th", "think>"]))


@pytest.mark.parametrize("tokenizer", [MARKED, SPELLED], ids=["marked", "spelled"])
@pytest.mark.parametrize(
    ("text", "format", "expected"),
    [
        ("<think>\nships\n</think>\n\nHarbour.", THINKS, Seen("ships", "Harbour.")),
        ("<think>ships</think>Harbour.\n", THINKS, Seen("ships", "Harbour.\n")),
        ("\n<think>ships \n</think>\n Harbour.", THINKS, Seen("ships ", " Harbour.")),
        ("<think>\n\n</think>\n\nHarbour.", THINKS, Seen("", "Harbour.")),
        ("ships\n</think>\n\nHarbour.", GOES_ON_THINKING, Seen("ships", "Harbour.")),
        ("\n</think>\n\nHarbour.", GOES_ON_THINKING, Seen("", "Harbour.")),
        ("<think>\nships\n</think>\n\nHarbour.", GOES_ON_THINKING, Seen("ships", "Harbour.")),
        ("no end of it\n", GOES_ON_THINKING, Seen("no end of it\n", "")),
        ("  Harbour.", THINKS, Seen("", "  Harbour.")),
        ("\n ", THINKS, Seen("", "\n ")),
        ("Say <think> and </think>.", THINKS, Seen("", "Say <think> and </think>.")),
        ("<think>a <think> b</think>c", THINKS, Seen("a <think> b", "c")),
        ("<think>a</think>", PLAIN, Seen("", "<think>a</think>")),
        ("<think>a</think>b</think>c", THINKS, Seen("a", "b</think>c")),
    ],
)
def test_reasoning_and_content_part_at_their_markers(
    text: str, format: ReplyFormat, expected: Seen, tokenizer: Tokenizer
) -> None:
    assert read(text, format, tokenizer=tokenizer) == expected


def test_a_marker_spelled_in_ordinary_tokens_is_text_where_it_is_a_token() -> None:
    ids = [*tokens(MARKED, "<think>"), *MARKED.encode("is </think> a tag?"), *tokens(MARKED, "</think>Yes")]
    assert seen(events_of(ReplyReader(MARKED, THINKS), ids)) == Seen("is </think> a tag?", "Yes")


@settings(max_examples=150, deadline=None)
@given(PARTS, CUTS, st.sampled_from([THINKS, GOES_ON_THINKING, PLAIN]), st.sampled_from([(), ("ab",), ("\n\n", "b<")]))
def test_any_cut_gives_the_same_reply(parts: list[str], cuts: list[int], format: ReplyFormat, stops: Any) -> None:
    text = "".join(parts)
    for tokenizer in (MARKED, SPELLED):
        assert read(text, format, stops, cuts, tokenizer) == read(text, format, stops, (), tokenizer)


@settings(max_examples=150, deadline=None)
@given(PARTS, CUTS)
def test_nothing_but_markers_and_white_space_is_lost(parts: list[str], cuts: list[int]) -> None:
    def letters(text: str) -> str:
        return "".join(re.sub("</?think>", "", text).split())

    text = "".join(parts)
    result = read(text, THINKS, cuts=cuts)
    # each by itself: "<" at the end of one and "think>" at the start of the other are no marker
    assert letters(result.reasoning) + letters(result.content) == letters(text)


def test_every_piece_comes_as_early_as_it_is_certain() -> None:
    reader = ReplyReader(MARKED, THINKS, stops=["port"])
    said = [(text, reader.feed(Draw(id_))) for text in ("<think>", "a", "\n", "b", "</think>", "\n", "c", "p", "x")
            for id_ in tokens(MARKED, text)]  # fmt: skip
    assert [events for _, events in said] == [
        [], [ReasoningText("a")], [], [ReasoningText("\nb")], [], [], [ContentText("c")], [], [ContentText("px")],
    ]  # fmt: skip


def test_half_a_character_is_never_shown() -> None:
    reader = ReplyReader(MARKED, THINKS)
    ids = MARKED.encode("\U0001f6a2")
    assert len(ids) > 1
    events = [reader.feed(Draw(id_)) for id_ in ids]
    assert events[:-1] == [[]] * (len(ids) - 1) and events[-1] == [ContentText("\U0001f6a2")]


def test_a_character_cut_off_by_the_end_is_a_replacement_character() -> None:
    ids = MARKED.encode("\U0001f6a2")[:-1]
    assert seen(events_of(ReplyReader(MARKED, PLAIN), ids)).content == "\ufffd"


def test_stop_strings_are_looked_for_in_content_alone() -> None:
    text = "<think>\nEND of thought\n\n</think>\n\nthe END and more"
    assert read(text, THINKS, ["END", "\n\n"]) == Seen("END of thought", "the ", stop="END")


def test_a_stop_counts_the_tokens_up_to_the_one_that_completed_it() -> None:
    ids = tokens(MARKED, "<think>a</think>\n\nx") + MARKED.encode("E") + MARKED.encode("N") + MARKED.encode("D")
    reader = ReplyReader(MARKED, THINKS, ["END"])
    events = events_of(reader, [*ids, *MARKED.encode("more")])
    assert events[-1] == StopFound("END", len(ids))
    assert reader.is_over and reader.feed(Draw(ids[0])) == [] and reader.finish() == []


def test_a_stop_in_white_space_at_the_start_counts_its_own_tokens() -> None:
    ids = MARKED.encode(" ") + MARKED.encode(" ") + MARKED.encode("a")
    events = events_of(ReplyReader(MARKED, THINKS, [" "]), ids)
    assert events == [StopFound(" ", 1)]


def test_tokens_tell_which_part_they_belong_to() -> None:
    end = MARKED.token_id("<|im_end|>")
    ids = [*tokens(MARKED, "<think>\na\n</think>\n\n"), *MARKED.encode("b"), *MARKED.encode("\U0001f6a2"), end]
    reader = ReplyReader(MARKED, THINKS, end_ids=[end], shows_tokens=True)
    shown = [event for event in events_of(reader, ids) if isinstance(event, TokenShown)]
    assert [event.draw.token_id for event in shown] == ids
    content = [event.draw.token_id for event in shown if event.is_content]
    assert content == MARKED.encode("b") + MARKED.encode("\U0001f6a2")
    assert shown[0].text == "<think>" and shown[-1].text == "<|im_end|>"


def test_tokens_of_a_stop_string_are_not_content() -> None:
    ids = [*MARKED.encode("a"), *MARKED.encode("E"), *MARKED.encode("N")]
    events = events_of(ReplyReader(MARKED, PLAIN, ["EN"], shows_tokens=True), ids)
    assert [event.is_content for event in events if isinstance(event, TokenShown)] == [True, False, False]


@settings(max_examples=100, deadline=None)
@given(PARTS, CUTS, st.sampled_from([(), ("ab",)]))
def test_every_token_is_told_once_and_in_order(parts: list[str], cuts: list[int], stops: Any) -> None:
    ids = tokens(MARKED, "".join(parts), cuts)
    events = events_of(ReplyReader(MARKED, THINKS, stops, shows_tokens=True), ids)
    told = [event.draw.token_id for event in events if isinstance(event, TokenShown)]
    stop = next((event for event in events if isinstance(event, StopFound)), None)
    assert told == (ids if stop is None else ids[: stop.kept_tokens])


def test_ids_of_calls_are_their_own() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100 and all(len(id_) == len("call_") + 24 for id_ in ids)
