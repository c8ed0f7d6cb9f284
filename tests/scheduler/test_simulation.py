"""Hours of random arrivals, long prompts and cancels on a simulated engine: nobody starves, no slot is lost."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from strata.engine.messages import Drawn, Ended, FromEngine
from strata.engine.request import TokenRequest
from strata.engine.steps import Open
from strata.scheduler.due import Limits
from strata.scheduler.read_modes import ReadMode, ReadRule
from strata.scheduler.scheduler import Scheduler
from strata.types import FinishReason
from tests.scheduler.simulated import LAYERS, Costs, SimulatedEngine, reply_token, request


@dataclass
class Seen:
    """What one client saw, on the engine's clock."""

    asked: TokenRequest
    tokens: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    ended: Ended | None = None


class World:
    """Clients that come and go by chance, and the scheduler that serves them."""

    def __init__(self, seed: int, limits: Limits, costs: Costs) -> None:
        self.chance = random.Random(seed)
        self.engine = SimulatedEngine(costs)
        self.scheduler = Scheduler(self.engine, limits, self.engine.clock, self.engine.sleep)
        self.seen: dict[int, Seen] = {}
        self.conversations: list[tuple[int, ...]] = []
        self.leaving: list[tuple[float, int]] = []  # a heap

    def run(self, requests: int, seconds_between: float) -> None:
        arrival = 0.0
        for number in range(requests):
            arrival += self.chance.expovariate(1 / seconds_between)
            self._until(arrival)
            asked = self._request()
            if self.chance.random() < 0.3:
                heapq.heappush(self.leaving, (arrival + self.chance.expovariate(1 / 5), number))
            self.seen[number] = Seen(asked)
            self.scheduler.submit(number, asked)
        self._until(float("inf"))

    def _request(self) -> TokenRequest:
        chance = self.chance
        if self.conversations and chance.random() < 0.5:
            start = chance.choice(self.conversations[-20:])
            start = start[: chance.randrange(1, len(start) + 1)] if chance.random() < 0.2 else start
        else:
            start = ()
        long = 20_000 if chance.random() < 0.03 else 600
        added = tuple(chance.randrange(1000) for _ in range(chance.randrange(1, long)))
        return request((*start[:30_000], *added), chance.choice((1, 5, 40, 200)))

    def _until(self, moment: float) -> None:
        while self.scheduler.has_work and self.engine.now < moment:
            while self.leaving and self.leaving[0][0] <= self.engine.now:
                _, number = heapq.heappop(self.leaving)
                self.scheduler.cancel(number, len(self.seen[number].tokens) if self.chance.random() < 0.5 else None)
            for event in self.scheduler.turn():
                self._take(event)
        if moment != float("inf"):
            self.engine.now = max(self.engine.now, moment)

    def _take(self, event: FromEngine) -> None:
        if isinstance(event, Drawn):
            seen = self.seen[event.request_id]
            assert seen.ended is None, "nothing comes behind the end"
            seen.tokens += [draw.token_id for draw in event.draws]
            seen.at.append(self.engine.now)
        elif isinstance(event, Ended):
            seen = self.seen[event.request_id]
            assert seen.ended is None, "a request ends once"
            seen.ended = event
            if event.reason is FinishReason.LENGTH:
                self.conversations.append((*seen.asked.prompt, *seen.tokens))


def served_world(seed: int, limits: Limits, costs: Costs, requests: int = 1500, between: float = 1.0) -> World:
    world = World(seed, limits, costs)
    world.run(requests, between)
    return world


@pytest.mark.parametrize(("slots", "keep_turns"), [(1, True), (4, True), (8, False)])
def test_every_request_ends_and_every_slot_comes_back(slots: int, keep_turns: bool) -> None:
    limits = Limits(slots, keep_turns=keep_turns)
    world = served_world(slots, limits, Costs(), requests=500, between=2.5 / slots)
    for seen in world.seen.values():
        assert seen.ended is not None
        assert seen.tokens == [reply_token(seen.asked, index) for index in range(len(seen.tokens))]
        if seen.ended.reason is FinishReason.LENGTH:
            assert len(seen.tokens) == seen.asked.options.max_tokens
        else:
            assert seen.ended.reason is FinishReason.CANCELLED
    statistics = world.scheduler.statistics()
    assert not world.scheduler.has_work
    assert (statistics.waiting, {slot.phase for slot in statistics.slots}) == (0, {"idle"})
    assert statistics.cached_tokens > 0
    reasons = Counter(seen.ended.reason for seen in world.seen.values() if seen.ended is not None)
    assert min(reasons[FinishReason.LENGTH], reasons[FinishReason.CANCELLED]) > 25


def test_slots_are_given_in_the_order_of_arrival_where_nobody_may_pass() -> None:
    uncut = ReadRule(ReadMode.WHOLE, is_piped=True)
    world = served_world(1, Limits(4, rule=uncut), Costs(), requests=600, between=0.5)
    opened = [step.request for step in world.engine.steps if isinstance(step, Open)]
    arrived = [seen.asked for seen in world.seen.values()]
    places = {id(asked): place for place, asked in enumerate(arrived)}
    order = [places[id(asked)] for asked in opened]
    assert order == sorted(order)


@pytest.mark.parametrize("max_gap", [0.1, 0.25])
def test_running_replies_pause_no_longer_than_the_gap(max_gap: float) -> None:
    """A layer takes 16 ms and a window of four 18 ms: the gap can be held, and is, but for an estimate's error."""
    world = served_world(7, Limits(4, max_gap=max_gap), Costs(row_per_position=1e-9), requests=500)
    gaps = [b - a for seen in world.seen.values() for a, b in zip(seen.at, seen.at[1:], strict=False)]
    assert max(gaps) <= 1.1 * max_gap
    assert max(gaps) > 0.5 * max_gap, "reads ran beside replies"


def test_a_machine_too_slow_for_the_gap_starves_neither_side() -> None:
    costs = Costs(row=0.005, window=0.2)  # a layer takes 0.16 s, a window 0.2 s and more
    world = served_world(8, Limits(4, max_gap=0.1), costs, requests=300, between=6.0)
    one_step = (costs.read + 512 * costs.row) / LAYERS
    one_window = costs.window + 4 * costs.window_row
    gaps = [b - a for seen in world.seen.values() for a, b in zip(seen.at, seen.at[1:], strict=False)]
    assert max(gaps) <= 1.01 * (one_step + one_window)
    assert all(seen.ended is not None for seen in world.seen.values())


def test_a_share_of_windows_is_given_while_others_are_read() -> None:
    """Two replies run while a long prompt joins: they get as much time as the read, though the gap would allow less."""
    for share, least, most in ((1.0, 0.45, 0.6), (0.25, 0.18, 0.3)):
        engine = SimulatedEngine()
        scheduler = Scheduler(
            engine, Limits(3, max_gap=10.0, rule=ReadRule(decode_share=share)), engine.clock, engine.sleep
        )
        for number in (1, 2):
            scheduler.submit(number, request((number, 2, 3), 100_000))
        while not scheduler.statistics().reply_tokens:
            scheduler.turn()
        scheduler.submit(3, request(tuple(range(20_000)), 1))
        began, windows = engine.now, scheduler.statistics().windows
        while not any(isinstance(event, Ended) for event in scheduler.turn()):
            pass
        in_windows = (scheduler.statistics().windows - windows) * (engine.costs.window + 2 * engine.costs.window_row)
        assert least <= in_windows / (engine.now - began) <= most
