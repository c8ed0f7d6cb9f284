"""Chats and asides over a few slots: what each request finds, counted in rows that nobody reads."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from strata.engine.messages import Ended
from strata.scheduler.due import Limits
from strata.scheduler.scheduler import Scheduler
from tests.scheduler.simulated import SimulatedEngine, reply_token, request

SYSTEM = tuple(range(10_000, 12_100))
ROOT = 2048  # the line in front of its end


class Chats:
    """Requests one after another; every text is of tokens of its own."""

    def __init__(self, slots: int) -> None:
        self.engine = SimulatedEngine()
        self.scheduler = Scheduler(self.engine, Limits(slots), self.engine.clock, self.engine.sleep)
        self._number = 0

    def say(self, length: int) -> tuple[int, ...]:
        """Something that nobody said before."""
        self._number += 1
        return tuple(1_000_000 * self._number + index for index in range(length))

    def ask(self, prompt: Sequence[int], boundaries: Sequence[int], reply: int) -> tuple[int, list[int]]:
        """Rows that were there, and the reply."""
        self._number += 1
        asked = replace(request(tuple(prompt), reply), boundaries=tuple(boundaries))
        self.scheduler.submit(self._number, asked)
        events = []
        while self.scheduler.has_work:
            events += self.scheduler.turn()
        (ended,) = [event for event in events if isinstance(event, Ended)]
        assert ended.error is None
        return ended.usage.cached_tokens, [reply_token(asked, index) for index in range(reply)]

    def aside(self, reply: int, system: Sequence[int] = ()) -> int:
        """A request that nobody goes on with, which quotes much and says little; rows that were there."""
        prompt = (*system, *self.say(1500))
        return self.ask(prompt, (len(system), len(prompt) - 4) if system else (len(prompt) - 4,), reply)[0]


def test_asides_between_two_turns_cost_the_chat_nothing_with_two_slots() -> None:
    chats = Chats(2)
    prompt = (*SYSTEM, *chats.say(300))
    boundaries = [len(SYSTEM), len(prompt) - 4]
    for _ in range(4):
        _, reply = chats.ask(prompt, boundaries, 200)
        for words in (8, 20, 40):  # a title, tags, questions to ask next
            assert chats.aside(words) == 0
        held = len(prompt) + len(reply) - 1
        prompt = (*prompt, *reply, *chats.say(100))
        boundaries += [held + 1, len(prompt) - 4]
        assert chats.ask(prompt, boundaries, 200)[0] == held
        prompt = (*prompt, *chats.say(10))


def test_with_one_slot_an_aside_takes_it_and_the_chat_is_read_again() -> None:
    chats = Chats(1)
    prompt = (*SYSTEM, *chats.say(300))
    _, reply = chats.ask(prompt, (len(SYSTEM), len(prompt) - 4), 50)
    assert chats.aside(8) == 0
    assert chats.ask((*prompt, *reply, *chats.say(50)), (len(SYSTEM), len(prompt) - 4), 5)[0] == 0


@pytest.mark.parametrize("slots", [2, 3])
def test_conversations_with_one_system_prompt_read_it_once(slots: int) -> None:
    chats = Chats(slots)
    found = []
    for _ in range(6):
        prompt = (*SYSTEM, *chats.say(1200))
        found.append(chats.ask(prompt, (len(SYSTEM), len(prompt) - 4), 150)[0])
    assert found == [0] + [ROOT] * 5


def test_another_question_goes_on_where_the_last_one_began() -> None:
    """Also with the reply's start alone in between: as many rows are there as the text shares, but for a line."""
    chats = Chats(2)
    prompt = (*SYSTEM, *chats.say(700))
    _, reply = chats.ask(prompt, (len(SYSTEM), len(prompt) - 4), 60)
    second = (*prompt, *reply, *chats.say(90))
    starts = (len(SYSTEM), len(prompt) - 4, len(prompt) + len(reply), len(second) - 4)
    chats.ask(second, starts, 60)
    other = (*prompt, *reply, *chats.say(80))
    assert chats.ask(other, starts, 5)[0] == len(prompt) + len(reply) - 1  # where the kept turn began
    assert chats.ask((*prompt[:-4], *chats.say(40)), starts[:2], 5)[0] == (len(prompt) - 4) // 64 * 64


def test_a_chat_that_nobody_goes_on_with_gives_way_in_the_end() -> None:
    chats = Chats(2)
    prompt = (*SYSTEM, *chats.say(300))
    chats.ask(prompt, (len(SYSTEM), len(prompt) - 4), 200)
    asked = 0
    while any(slot.prompt_tokens == len(prompt) for slot in chats.scheduler._slots):
        chats.aside(128)
        asked += 1
        assert asked < 6
    assert asked > 2
