"""Hours of random agents on a simulated machine: they come in crowds, read long, talk, ask aside, leave and return.

Counts what must not be: requests that starve, slots that are lost, gaps over the bound, replies with other tokens.
Knows no model; times are seconds of the machine's own clock.
"""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from strata.bench.join_modes import JoinMode
from strata.bench.simulated_engine import reply_token
from strata.bench.simulation import Simulation
from strata.engine.messages import Drawn, Ended, FromEngine
from strata.engine.request import TokenRequest
from strata.errors import EngineError
from strata.sampling.options import SamplingOptions
from strata.scheduler.read_modes import ReadMode
from strata.types import FinishReason, ProgressCallback

STARVED_SECONDS = 300.0  # without a first token; the machine is busy for less than half of the time
ESTIMATES = 1.1  # what is not known before may take so many times what was expected: a first step, a larger window
END_SECONDS = 10 * 3600.0  # behind the last crowd; conversations last minutes
CROWD_SECONDS = 250.0  # between two crowds of agents, on average
MOST_OF_A_CROWD = 5
OPENING_ROWS = 4_000  # a system prompt, of one of a few kinds of agents
KINDS = 3
FIRST_ROWS = (1_000, 8_000, 20_000, 60_000)
TURN_ROWS = (40, 300, 2_500)
REPLY_TOKENS = (1, 20, 80, 250)
MOST_TURNS = 10
MOST_ROWS = 120_000  # of a conversation
THINKING_SECONDS, LEAVING_SECONDS = 20.0, 4.0
LEAVING, ASKING_ASIDE = 0.12, 0.1  # of requests


@dataclass
class Findings:
    """What came of it. The first four must be 0."""

    starved: int = 0
    lost_slots: int = 0
    gaps_over: int = 0
    wrong_replies: int = 0
    bound: float = 0.0  # seconds of a gap: --max-gap-ms, or a step and a window where they take longer
    requests: int = 0
    ended: int = 0
    cancelled: int = 0
    windows: int = 0
    prompt_rows: int = 0  # read
    cached_rows: int = 0
    give_ways: int = 0
    longest_gap: float = 0.0
    longest_wait: float = 0.0  # for a first token

    @property
    def is_good(self) -> bool:
        """Nothing happened that must not."""
        return not (self.starved or self.lost_slots or self.gaps_over or self.wrong_replies)


@dataclass
class _Agent:
    """A conversation and what is left of it."""

    tokens: tuple[int, ...]
    turns: int


@dataclass
class _Asked:
    """A request under way."""

    agent: _Agent
    request: TokenRequest
    sent: float
    reply: list[int] = field(default_factory=list)
    last: float = 0.0


def live(simulation: Simulation, hours: float, seed: int, on_progress: ProgressCallback | None = None) -> Findings:
    """So many hours in the mode `layers`, then until everything has ended. Raises EngineError if a request fails."""
    return _World(simulation, seed).run(hours, on_progress)


class _World:
    def __init__(self, simulation: Simulation, seed: int) -> None:
        self._chance = random.Random(seed)
        self._scheduler, self._engine = simulation.scheduler(JoinMode(ReadMode.LAYERS))
        machine = simulation.machine
        least = machine.longest_step() + machine.longest_window()
        self._found = Findings(bound=ESTIMATES * max(simulation.settings.max_gap_ms / 1000, least))
        self._due: list[tuple[float, int, Callable[[], None]]] = []  # a heap; the number keeps the order
        self._asked: dict[int, _Asked] = {}
        self._numbers = 0
        self._fresh = 1 << 20  # tokens that nobody has had yet

    def run(self, hours: float, on_progress: ProgressCallback | None) -> Findings:
        seconds, told = 3600.0 * hours, -1
        self._later(0.0, self._crowd_comes(seconds))
        while self._due or self._scheduler.has_work:
            while self._due and self._due[0][0] <= self._engine.now:
                heapq.heappop(self._due)[2]()
            if self._scheduler.has_work:
                for event in self._scheduler.turn():
                    self._take(event)
                self._require_end(seconds)
            elif self._due:
                self._count_lost()
                self._engine.now = max(self._engine.now, self._due[0][0])
            hour = int(self._engine.now // 3600)
            if on_progress is not None and hour != told:
                told = hour
                on_progress("simulating hours", min(hour, math.ceil(hours)), math.ceil(hours))
        self._count_lost()
        return self._summed()

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (self._engine.now + seconds, self._numbers, what))

    def _crowd_comes(self, until: float) -> Callable[[], None]:
        def come() -> None:
            if self._engine.now > until:
                return
            for _ in range(self._chance.randint(1, MOST_OF_A_CROWD)):
                self._later(self._chance.uniform(0.0, 10.0), self._begins)
            self._later(self._chance.expovariate(1 / CROWD_SECONDS), come)

        return come

    def _begins(self) -> None:
        kind = self._chance.randrange(KINDS)
        opening = tuple(range(kind * OPENING_ROWS, (kind + 1) * OPENING_ROWS))
        agent = _Agent((*opening, *self._text(self._between(FIRST_ROWS))), self._chance.randint(1, MOST_TURNS))
        self._ask(agent)

    def _goes_on(self, agent: _Agent) -> Callable[[], None]:
        def ask() -> None:
            agent.tokens = (*agent.tokens, *self._text(self._between(TURN_ROWS)))
            self._ask(agent)

        return ask

    def _ask(self, agent: _Agent) -> None:
        self._submit(agent, agent.tokens)
        if self._chance.random() < ASKING_ASIDE:
            self._submit(_Agent((), 0), self._text(self._chance.randint(10, 200)))

    def _submit(self, agent: _Agent, prompt: tuple[int, ...]) -> None:
        number = self._found.requests
        self._found.requests += 1
        request = TokenRequest(prompt, SamplingOptions(max_tokens=self._between(REPLY_TOKENS)))
        self._asked[number] = _Asked(agent, request, self._engine.now)
        self._scheduler.submit(number, request)
        if self._chance.random() < LEAVING:
            self._later(self._chance.expovariate(1 / LEAVING_SECONDS), lambda: self._leaves(number))

    def _leaves(self, number: int) -> None:
        if number in self._asked:
            kept = len(self._asked[number].reply) if self._chance.random() < 0.5 else None
            self._scheduler.cancel(number, kept)

    def _take(self, event: FromEngine) -> None:
        if isinstance(event, Drawn):
            self._take_tokens(self._asked[event.request_id], [draw.token_id for draw in event.draws])
        elif isinstance(event, Ended):
            self._end(self._asked.pop(event.request_id), event)

    def _take_tokens(self, asked: _Asked, tokens: list[int]) -> None:
        found, now = self._found, self._engine.now
        if asked.reply:
            gap = now - asked.last
            found.longest_gap = max(found.longest_gap, gap)
            found.gaps_over += gap > found.bound
        else:
            waited = now - asked.sent
            found.longest_wait = max(found.longest_wait, waited)
            found.starved += waited > STARVED_SECONDS
        found.wrong_replies += any(
            token != reply_token(asked.request, place) for place, token in enumerate(tokens, len(asked.reply))
        )
        asked.reply += tokens
        asked.last = now

    def _end(self, asked: _Asked, event: Ended) -> None:
        if event.error is not None:
            raise EngineError(f"a request of {len(asked.request.prompt):,} tokens failed: {event.error}")
        self._found.ended += 1
        if event.reason is FinishReason.CANCELLED:
            self._found.cancelled += 1
            return
        self._found.wrong_replies += len(asked.reply) != asked.request.options.max_tokens
        agent = asked.agent
        agent.turns -= 1
        agent.tokens = (*asked.request.prompt, *asked.reply)
        if agent.turns > 0 and len(agent.tokens) < MOST_ROWS:
            self._later(self._chance.expovariate(1 / THINKING_SECONDS), self._goes_on(agent))

    def _require_end(self, seconds: float) -> None:
        """Raises EngineError if what is there does not end although nobody comes any more."""
        if self._engine.now > seconds + END_SECONDS:
            raise EngineError(f"{len(self._asked)} requests have not ended hours after the last agent came")

    def _count_lost(self) -> None:
        """Nothing is under way now: every slot is free, and no read is forgotten in one."""
        busy = sum(view.phase != "idle" for view in self._scheduler.statistics().slots)
        self._found.lost_slots += busy + sum(slot.piece is not None for slot in self._engine.slots.values())
        self._found.starved += len(self._asked)
        self._asked.clear()

    def _summed(self) -> Findings:
        statistics, found = self._scheduler.statistics(), self._found
        found.windows, found.give_ways = statistics.windows, statistics.give_ways
        found.prompt_rows, found.cached_rows = statistics.prompt_tokens, statistics.cached_tokens
        return found

    def _between(self, steps: tuple[int, ...]) -> int:
        """Somewhere between two neighbours: every order of size is as likely."""
        place = self._chance.randrange(len(steps) - 1)
        return self._chance.randint(steps[place], steps[place + 1])

    def _text(self, rows: int) -> tuple[int, ...]:
        """Tokens that nobody has had."""
        self._fresh += rows
        return tuple(range(self._fresh - rows, self._fresh))
