"""Which slot a prompt gets, and how much of it is there already."""

from dataclasses import replace

import pytest

from strata.engine.request import TokenRequest
from strata.sampling.options import SamplingOptions
from strata.scheduler.request import Run
from strata.scheduler.slots import SlotBook, Start, choose_start, common_prefix, reusable_rows


def numbers(count: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def ask(prompt: tuple[int, ...], prompt_logprobs: int | None = None) -> TokenRequest:
    return TokenRequest(prompt, SamplingOptions(), prompt_logprobs=prompt_logprobs)


def book(
    index: int,
    tokens: tuple[int, ...] = (),
    points: tuple[int, ...] = (),
    turn_end: int | None = None,
    last_use: int = 0,
    read_only: int = 0,
) -> SlotBook:
    return SlotBook(index, None, tokens, points, turn_end, read_only, last_use)


def busy(slot: SlotBook) -> SlotBook:
    slot.run = Run(1, ask(slot.tokens), 0.0)
    return slot


def choose(prompt: tuple[int, ...], *slots: SlotBook) -> Start:
    return choose_start(ask(prompt), slots, keep_turns=True)


def test_without_anything_to_go_on_from_the_slot_longest_unused_is_taken() -> None:
    slots = [book(0, numbers(80, 500), last_use=3), book(1, last_use=1), book(2, numbers(80, 900), last_use=2)]
    assert choose(numbers(50), *slots) == Start(1)


def test_the_longest_beginning_wins() -> None:
    prompt = numbers(300)
    short = book(0, numbers(100), points=(64,), last_use=9)
    long = book(1, numbers(200), points=(64, 128), last_use=1)
    assert choose(prompt, short, long) == Start(1, 1, 128)


def test_next_turn_goes_on_in_its_own_slot() -> None:
    kept = book(0, numbers(150), points=(64,), turn_end=149, last_use=9)
    assert choose(numbers(200), kept, book(1)) == Start(0, 0, 149)


def test_who_shares_a_system_prompt_alone_leaves_the_conversation_its_slot() -> None:
    kept = book(0, numbers(300), points=(128, 256), turn_end=299, last_use=9)
    agent = replace(ask((*numbers(200), *numbers(50, 5000))), boundaries=(140, 249))
    assert choose_start(agent, [kept, book(1)], keep_turns=True) == Start(1, 0, 128)
    changed = replace(ask((*numbers(270), *numbers(50, 5000))), boundaries=(140, 319))
    assert choose_start(changed, [kept, book(1)], keep_turns=True) == Start(0, 0, 256)
    kept.points = (128,)  # also if its own first message is too short for a point behind it
    again = replace(ask((*numbers(160), *numbers(50, 5000))), boundaries=(140, 155))
    kept.tokens = kept.tokens[:200]
    assert choose_start(again, [kept, book(1)], keep_turns=True) == Start(0, 0, 128)


def test_the_lowest_rank_gives_way_then_the_longest_unused() -> None:
    slots = [book(index, numbers(80, 1000 * index), last_use=use) for index, use in ((1, 3), (2, 2), (3, 9))]
    for slot, rank in zip(slots, (50.0, 50.0, 80.0), strict=True):
        slot.rank = rank
    assert choose(numbers(50), *slots) == Start(2)


def ended(slot: SlotBook, prompt: int, reply: int, floor: float = 0.0, source: SlotBook | None = None) -> SlotBook:
    """After a request of so many tokens."""
    slot.begin(Run(1, ask(numbers(prompt)), 0.0, first_token=1.0, reply=[5] * reply), Start(slot.index), source)
    slot.end(1, floor=floor)
    return slot


def test_a_rank_is_what_reading_again_would_cost() -> None:
    chat, title, long = ended(SlotBook(0), 500, 300), ended(SlotBook(1), 900, 8), ended(SlotBook(2), 9000, 40)
    assert title.rank < chat.rank < long.rank
    assert ended(SlotBook(3), 900, 8, floor=2000.0).rank > chat.rank  # nobody goes on with the chat: it is overtaken
    once = chat.rank
    assert ended(chat, 900, 2, source=chat).rank > 2 * once  # gone on with: no aside, however short the reply


def test_what_shares_little_is_copied_and_leaves_the_conversation_alone() -> None:
    kept = book(0, numbers(1000), points=(64, 960), turn_end=999, last_use=9)
    prompt = (*numbers(80), *numbers(50, 5000))
    assert choose(prompt, kept, book(1, last_use=1)) == Start(1, 0, 64)
    assert choose(prompt, kept) == Start(0, 0, 64, cuts_short=True)  # there is no other


def test_a_slot_that_is_in_use_lends_its_points() -> None:
    reading = busy(book(0, numbers(500), points=(256, 448), turn_end=499))
    assert choose(numbers(600), reading, book(1), book(2)) == Start(1, 0, 448)


def test_log_probabilities_of_a_prompt_need_a_whole_read() -> None:
    kept = book(0, numbers(150), points=(64,), turn_end=149, last_use=9)
    assert choose_start(ask(numbers(200), prompt_logprobs=0), [kept, book(1)], keep_turns=True) == Start(1)


@pytest.mark.parametrize(("shared", "rows"), [(10, 0), (63, 0), (64, 64), (127, 64), (128, 128), (140, 128)])
def test_a_prompt_goes_on_from_a_point_in_what_is_shared(shared: int, rows: int) -> None:
    slot = book(0, numbers(150), points=(64, 128), turn_end=149)
    prompt = (*numbers(shared), *numbers(60, 7000))
    assert reusable_rows(prompt, slot, keep_turns=True) == rows


def test_one_row_is_left_to_read() -> None:
    slot = book(0, numbers(128), points=(64, 128))
    assert reusable_rows(numbers(128), slot, keep_turns=True) == 64
    assert reusable_rows(numbers(129), slot, keep_turns=True) == 128


def test_only_what_was_read_on_the_grid_counts_if_turns_are_read() -> None:
    slot = book(0, numbers(500), points=(64, 192, 230, 320), turn_end=499, read_only=200)
    assert reusable_rows(numbers(600), slot, keep_turns=True) == 499
    assert reusable_rows(numbers(600), slot, keep_turns=False) == 192


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 3000])
def test_common_prefix_is_the_one_counted_token_by_token(length: int) -> None:
    one, other = (*numbers(length), -1, 5), (*numbers(length), -2, 5)
    assert common_prefix(one, other) == length
    assert common_prefix(one, one[:length]) == length


def test_book_of_a_conversation_turn_by_turn() -> None:
    slot = SlotBook(0)
    first = Run(1, ask(numbers(100)), 0.0, first_token=1.0, last_token=1.0, reply=[7, 8, 9])
    slot.begin(first, Start(0), None)
    assert (slot.is_idle, slot.read_only) == (False, 100)
    slot.end(use=1)
    assert (slot.is_idle, slot.tokens, slot.turn_end) == (True, (*numbers(100), 7, 8, 9), 102)
    second = Run(2, ask((*numbers(100), 7, 8, 9, *numbers(50, 300))), 0.0)
    slot.begin(second, Start(0, 0, 102), slot)
    assert slot.read_only == 100  # a kept turn: what comes behind is not as if it were only read
    second.read_rows = 128
    slot.end(use=2)
    assert (len(slot.tokens), slot.turn_end) == (128, None)


def test_a_cancelled_read_keeps_the_points_inside_its_step() -> None:
    slot, again = SlotBook(0), numbers(600)
    slot.begin(Run(1, ask(again), 0.0), Start(0), None)
    slot.points = (256,)  # told while the step to row 512 is under way
    slot.end(use=1)
    assert choose(again, slot) == Start(0, 0, 256)


@pytest.mark.parametrize(("kept", "turn_end"), [(0, None), (1, None), (2, 101), (3, 102), (99, 102)])
def test_conversation_ends_with_what_was_handed_out(kept: int, turn_end: int | None) -> None:
    slot = SlotBook(0)
    slot.begin(Run(1, ask(numbers(100)), 0.0, first_token=1.0, reply=[7, 8, 9]), Start(0), None)
    slot.end(use=1, kept_reply=kept)
    assert (len(slot.tokens), slot.turn_end) == (100 + min(kept, 3), turn_end)


def test_a_read_from_a_point_inside_what_was_read_is_a_fresh_read() -> None:
    source = book(0, numbers(500), points=(128, 320), read_only=200)
    for position, read_only in ((128, 700), (320, 200)):
        slot = SlotBook(1)
        slot.begin(Run(1, ask(numbers(700)), 0.0), Start(1, 0, position), source)
        assert slot.read_only == read_only
