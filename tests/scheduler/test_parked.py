"""Which conversations lie in main memory while others have their slots: bytes, ranks, and what prompts find there."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine.steps import Open, ParkingSpace, SlotResult
from strata.scheduler.due import Limits
from strata.scheduler.parked import LEAST_ROWS, ParkedBooks, Way
from strata.scheduler.request import Run
from strata.scheduler.scheduler import Scheduler
from strata.scheduler.slots import SlotBook, Start, choose_start
from tests.scheduler.simulated import Costs, SimulatedEngine, request
from tests.scheduler.test_conversations import Chats
from tests.scheduler.test_simulation import World, served_world
from tests.scheduler.test_slots import ask, book, numbers

SPACE = ParkingSpace(limit=10_000, fixed=100, per_token=1.0)


def held(rows: int, worth: float = 0.0, last_request: int = 0, first: int = 0) -> SlotBook:
    """A slot with a conversation that may be gone on with at its end and at its middle."""
    slot = book(0, numbers(rows + 1, first), points=(rows // 128 * 64,), turn_end=rows)
    slot.worth, slot.last_request, slot.prompt_tokens = worth or rows, last_request, rows - 5
    return slot


def parked(*slots: SlotBook, space: ParkingSpace = SPACE) -> tuple[ParkedBooks, list[Way]]:
    """One after another gave its slot away."""
    books = ParkedBooks(space, 4, keep_turns=True)
    return books, [books.make_way(Start(0), slot) for slot in slots]


def test_a_conversation_moves_out_of_its_slot_and_back_into_another() -> None:
    books, (way,) = parked(held(500))
    assert way.park is not None and (way.park.place, way.park.tokens) == (4, numbers(500))
    start = choose_start(ask(numbers(600)), [book(0), book(1, last_use=1)], books.books, keep_turns=True)
    assert start == Start(0, 4, 500, takes_over=True)
    assert books.make_way(start, book(0)) == Way(start, None, (4,))
    books.note_hit(start)
    assert (books.books, books.counts()["returned"], books.counts()["rows"]) == ((), 1, 500)


def test_what_shares_little_with_a_parked_one_is_a_copy_of_it() -> None:
    books, _ = parked(held(500))
    prompt = (*numbers(210), *numbers(50, 5000))
    assert choose_start(ask(prompt), [book(0)], books.books, keep_turns=True) == Start(0, 4, 192)
    assert choose_start(ask(prompt, prompt_logprobs=0), [book(0)], books.books, keep_turns=True) == Start(0)


def test_a_slot_is_gone_on_with_before_a_parked_copy_of_it() -> None:
    books, _ = parked(held(500))
    assert choose_start(ask(numbers(600)), [held(500)], books.books, keep_turns=True) == Start(0, 0, 500)


def test_with_one_slot_a_prompt_that_shares_little_leaves_the_conversation_whole() -> None:
    slot = held(1000)
    slot.points = (64,)
    start = choose_start(ask((*numbers(80), *numbers(50, 5000))), [slot], keep_turns=True)
    books = ParkedBooks(SPACE, 1, keep_turns=True)
    way = books.make_way(start, slot)
    assert way.start == Start(0, 1, 64)
    assert way.park is not None and len(way.park.tokens) == 1000
    none = ParkedBooks(ParkingSpace(), 1, keep_turns=True)
    assert none.make_way(start, slot) == Way(Start(0, 0, 64, cuts_short=True))


@pytest.mark.parametrize(
    "slot",
    [held(LEAST_ROWS - 1), held(9901), book(0), book(0, numbers(900))],
    ids=["short", "larger than all there is", "empty", "without a place to go on"],
)
def test_who_is_not_parked(slot: SlotBook) -> None:
    books, (way,) = parked(slot)
    assert (way, books.used) == (Way(Start(0)), 0)


def test_only_pure_places_are_kept_if_turns_are_read() -> None:
    slot = held(900)
    slot.points, slot.read_only = (320, 640), 700
    way = ParkedBooks(SPACE, 4, keep_turns=False).make_way(Start(0), slot)
    assert way.park is not None and len(way.park.tokens) == 640


def test_those_that_are_worth_least_give_way_and_the_source_never() -> None:
    books, _ = parked(held(4000, 8000), held(2000, 200), held(2000, 2000))
    way = books.make_way(Start(0, 5, 256), held(3000, 3000, first=7))
    assert way.park is not None and (way.dropped, way.park.place) == ((6,), 7)  # 5 is worth less, but copied
    assert books.make_way(Start(0), held(2500, 2500, first=9)).dropped == (5,)


def test_what_is_worth_less_than_all_that_would_give_way_is_lost() -> None:
    books, _ = parked(held(4800, 9600), held(4800, 9600))
    aside = held(3000, 200)
    assert books.make_way(Start(0), aside) == Way(Start(0))
    for _ in range(30):  # but nobody stays for ever
        if books.make_way(Start(0), aside).dropped:
            return
    raise AssertionError("conversations that nobody comes back to keep their places")


def test_a_conversation_that_is_cut_behind_its_end_is_gone_on_with_from_its_points() -> None:
    books, _ = parked(held(500, last_request=7))
    assert books.cut(7, 99) == ()  # nothing of it goes
    assert books.cut(8, 1) == ()
    lost = books.cut(7, 3)
    assert lost == numbers(497)
    (left,) = books.books
    assert (left.tokens, left.turn_end, left.points) == (numbers(498), None, (192,))
    assert choose_start(ask(numbers(600)), [book(0)], books.books, keep_turns=True).position == 192


sizes = st.tuples(st.integers(1, 12_000), st.floats(0.1, 20_000), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(sizes, max_size=40))
def test_the_room_is_kept_and_nothing_gives_way_without_need(wanted: list[tuple[int, float, bool]]) -> None:
    books = ParkedBooks(SPACE, 4, keep_turns=True)
    there: dict[int, int] = {}
    for rows, worth, is_lost in wanted:
        before, ranks = dict(there), {each.index: each.rank for each in books.books}
        way = books.make_way(Start(0), held(rows, worth))
        for place in way.dropped:
            del there[place]
        if way.park is not None:
            assert way.park.place not in there
            there[way.park.place] = SPACE.size(rows)
            if is_lost:  # by the engine
                books.lose(way.park.place)
                del there[way.park.place]
        elif rows >= LEAST_ROWS:
            assert sum(before.values()) + SPACE.size(rows) > SPACE.limit and not way.dropped
        assert {each.index for each in books.books} == there.keys()
        assert books.used == sum(there.values()) <= SPACE.limit
        kept = [ranks[place] for place in there if place in ranks]
        assert all(ranks[place] <= min(kept, default=float("inf")) for place in way.dropped)
        spared = sum(there.values()) + sum(before[place] for place in way.dropped[-1:])
        assert not way.dropped or spared > SPACE.limit or is_lost


class ParkingChats(Chats):
    """Over an engine with room for conversations."""

    def __init__(self, slots: int, limit: int) -> None:
        super().__init__(slots)
        self.engine.parking = ParkingSpace(limit, 100, 1.0)
        self.scheduler = Scheduler(self.engine, Limits(slots), self.engine.clock, self.engine.sleep)


def turns(chats: ParkingChats, count: int, rounds: int) -> list[int]:
    """Rows of each prompt that had to be read, chats taking turns."""
    prompts = [chats.say(400) for _ in range(count)]
    read = []
    for _ in range(rounds):
        for number, prompt in enumerate(prompts):
            cached, reply = chats.ask(prompt, (), 20)
            read.append(len(prompt) - cached)
            prompts[number] = (*prompt, *reply, *chats.say(30))
    return read


def test_chats_that_take_turns_in_one_slot_are_read_once() -> None:
    assert turns(ParkingChats(1, 10_000), 3, 4) == [400] * 3 + [31] * 9


def test_without_room_they_are_read_again_and_told_so() -> None:
    chats = ParkingChats(1, 0)
    assert turns(chats, 2, 2) == [400, 400, 450, 450]
    assert chats.scheduler.statistics().parked == {}


def test_what_the_engine_could_not_bring_back_is_read_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    chats = ParkingChats(1, 10_000)
    prompt = chats.say(400)
    _, reply = chats.ask(prompt, (), 20)
    chats.aside(200)
    opened = chats.engine._opened

    def anew(step: Open) -> SlotResult:
        return replace(opened(replace(step, source=None, position=0)), begins_anew=True)

    monkeypatch.setattr(chats.engine, "_opened", anew)
    assert chats.ask((*prompt, *reply, *chats.say(30)), (), 5)[0] == 0


def test_an_aside_in_the_only_slot_costs_the_chat_nothing() -> None:
    chats = ParkingChats(1, 10_000)
    prompt = chats.say(400)
    _, reply = chats.ask(prompt, (), 50)
    for _ in range(3):
        chats.aside(8)
    assert chats.ask((*prompt, *reply, *chats.say(30)), (), 5)[0] == 449
    counts = chats.scheduler.statistics().parked
    assert (counts["kept"], counts["returned"], counts["rows"]) == (3, 1, 449)  # there is room for asides, too


@pytest.mark.parametrize("keep_turns", [True, False])
def test_hours_of_chance_with_little_room(keep_turns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, places and bytes are checked by the engine at every open; now and then it has no room."""
    chance = random.Random(3)
    monkeypatch.setattr(SimulatedEngine, "parking", ParkingSpace(60_000, 500, 1.0))
    begin = SimulatedEngine.__init__

    def refusing(engine: SimulatedEngine, costs: Costs | None = None) -> None:
        begin(engine, costs)
        engine.refuses_parking = lambda: chance.random() < 0.1

    monkeypatch.setattr(SimulatedEngine, "__init__", refusing)
    world: World = served_world(5, Limits(2, keep_turns=keep_turns), Costs(), requests=500, between=1.25)
    counts = world.scheduler.statistics().parked
    assert all(seen.ended is not None and seen.ended.error is None for seen in world.seen.values())
    assert min(counts["parked"], counts["dropped"], counts["returned"]) > 20
    assert counts["bytes"] == sum(map(world.engine.parking.size, world.engine.parked.values()))
    opened = [step for step in world.engine.steps if isinstance(step, Open)]
    assert any(step.park is not None and step.source is not None for step in opened)


def test_a_request_that_ends_while_it_is_parked_is_known() -> None:
    slot = held(500)
    run = Run(3, request(numbers(500)), 0.0, first_token=1.0)
    slot.begin(run, Start(0), None)
    run.reply = [1, 2, 3, 4]
    slot.end(1)
    books, _ = parked(slot)
    assert books.cut(3, 2) == (*numbers(500), 1)
