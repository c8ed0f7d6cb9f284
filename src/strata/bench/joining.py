"""Prompts that join running replies: who comes when, what everyone got, and how long the replies stood still.

Drives a scheduler turn by turn on its own clock, real or simulated; knows no model and no server. Times are seconds.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from strata.engine.messages import Drawn, Ended
from strata.engine.request import TokenRequest
from strata.errors import EngineError
from strata.sampling.options import SamplingOptions
from strata.scheduler.scheduler import Scheduler

PAUSE = 0.5  # a gap above which a stream counts as paused
FIRST_ROWS, SECOND_ROWS, LONG_ROWS, QUESTION_ROWS = 65_536, 32_768, 45_000, 24
SECOND_SENT, QUESTION_SENT = 0.87, 0.18  # of the first prompt's time to first token
STREAMS, STREAM_ROWS = 4, 256
JOINER_TOKENS, QUESTION_TOKENS = 64, 16

Prompts = Callable[[str, int], tuple[int, ...]]  # a client's name and its rows: token ids


@dataclass(frozen=True)
class Client:
    """One request: when it is sent, behind the moment at which every stream decodes."""

    name: str
    prompt_rows: int
    reply_tokens: int
    sent: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """Streams that decode from the start, and clients that join them."""

    name: str
    joiners: tuple[Client, ...]
    streams: int = 0
    stream_rows: int = STREAM_ROWS  # of each stream's prompt
    stream_tokens: int = 0  # of each stream's reply

    def scaled(self, scale: float) -> "Scenario":
        """With prompts of so many times the rows; a question stays one."""
        joiners = tuple(
            replace(each, prompt_rows=max(min(each.prompt_rows, QUESTION_ROWS), round(scale * each.prompt_rows)))
            for each in self.joiners
        )
        return replace(self, joiners=joiners, stream_rows=max(1, round(min(1.0, scale) * self.stream_rows)))

    def without_followers(self) -> "Scenario":
        """The first client alone."""
        return replace(self, joiners=self.joiners[:1])

    def with_offset(self, sent: float) -> "Scenario":
        """The second client comes so many seconds behind the first."""
        return replace(self, joiners=(self.joiners[0], *(replace(each, sent=sent) for each in self.joiners[1:])))

    @property
    def context(self) -> int:
        """The most tokens that one client has in the end."""
        rows = [each.prompt_rows + each.reply_tokens for each in self.joiners]
        return max(rows + [self.stream_rows + self.stream_tokens] * bool(self.streams))


def two_joiners(second_sent: float = 0.0, stream_tokens: int = 0) -> Scenario:
    """Two cold prompts join four streams, the second while the first is being read."""
    joiners = (
        Client("first", FIRST_ROWS, JOINER_TOKENS),
        Client("second", SECOND_ROWS, JOINER_TOKENS, second_sent),
    )
    return Scenario("two_joiners", joiners, STREAMS, stream_tokens=stream_tokens)


def follow_up(question_sent: float = 0.0) -> Scenario:
    """A one-line question comes while a long prompt is read and nothing decodes."""
    joiners = (
        Client("long", LONG_ROWS, JOINER_TOKENS),
        Client("question", QUESTION_ROWS, QUESTION_TOKENS, question_sent),
    )
    return Scenario("followup", joiners)


def read_alone() -> Scenario:
    """A long prompt on an idle engine."""
    return Scenario("read_alone", (Client("long", LONG_ROWS, QUESTION_TOKENS),))


SCENARIOS = {"two_joiners": two_joiners, "followup": follow_up, "read_alone": read_alone}


@dataclass
class Seen:
    """What one client got, and when."""

    sent: float
    at: list[float] = field(default_factory=list)  # of every arrival of tokens
    counts: list[int] = field(default_factory=list)  # so many each
    tokens: list[int] = field(default_factory=list)
    ended: float | None = None

    @property
    def first_token(self) -> float:
        """Seconds from sending to the first token."""
        return self.at[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between one arrival and the next."""
        return [after - before for before, after in itertools.pairwise(self.at)]


@dataclass(frozen=True)
class Joined:
    """A scenario that has run: its clients by name, streams as `stream 1`, `stream 2` ..."""

    scenario: Scenario
    began: float  # every stream decodes
    ended: float
    seen: dict[str, Seen]

    @property
    def streams(self) -> dict[str, Seen]:
        """Those that decoded from the start, by name."""
        return {name: self.seen[name] for name in stream_names(self.scenario)}

    @property
    def longest_pause(self) -> float:
        """Of any stream."""
        return max((gap for stream in self.streams.values() for gap in stream.gaps), default=0.0)

    @property
    def total_paused(self) -> float:
        """Seconds of gaps over half a second, mean over the streams."""
        paused = [sum(gap for gap in stream.gaps if gap > PAUSE) for stream in self.streams.values()]
        return sum(paused) / max(1, len(paused))

    @property
    def joining(self) -> tuple[float, float]:
        """From the first joiner's arrival to the last joiner's first token."""
        joiners = [self.seen[client.name] for client in self.scenario.joiners]
        return min(seen.sent for seen in joiners), max(seen.at[0] for seen in joiners)

    @property
    def tokens_meanwhile(self) -> int:
        """That the streams got while others joined."""
        begin, end = self.joining
        arrivals = [pair for each in self.streams.values() for pair in zip(each.at, each.counts, strict=True)]
        return sum(count for at, count in arrivals if begin <= at <= end)

    @property
    def gaps_meanwhile(self) -> list[float]:
        """Of all streams, those that ended while others joined or began there, rising."""
        begin, end = self.joining
        pairs = [pair for each in self.streams.values() for pair in itertools.pairwise(each.at)]
        return sorted(after - before for before, after in pairs if after >= begin and before <= end)

    @property
    def token_rate(self) -> float:
        """Tokens a second of all clients from the beginning to the last one's end."""
        arrivals = [pair for each in self.seen.values() for pair in zip(each.at, each.counts, strict=True)]
        return sum(count for at, count in arrivals if at > self.began) / (self.ended - self.began)


def stream_names(scenario: Scenario) -> list[str]:
    """Of the clients that decode from the start."""
    return [f"stream {number + 1}" for number in range(scenario.streams)]


def run_scenario(
    scenario: Scenario,
    scheduler: Scheduler,
    prompt: Prompts,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Joined:
    """Everything from the streams' first tokens to the last client's end. Raises EngineError if a request fails."""
    return _Driver(scenario, scheduler, prompt, clock, sleep).run()


@dataclass
class _Driver:
    scenario: Scenario
    scheduler: Scheduler
    prompt: Prompts
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    seen: dict[str, Seen] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # by the request's number

    def run(self) -> Joined:
        streams = stream_names(self.scenario)
        for name in streams:
            self._send(Client(name, self.scenario.stream_rows, self.scenario.stream_tokens))
        while not all(self.seen[name].at for name in streams):
            self._turn()
        began = self.clock()
        waiting = sorted(self.scenario.joiners, key=lambda client: client.sent)
        while waiting or self.scheduler.has_work:
            while waiting and self.clock() >= began + waiting[0].sent:
                self._send(waiting.pop(0))
            if self.scheduler.has_work:
                self._turn()
            else:
                self.sleep(max(0.0, began + waiting[0].sent - self.clock()))
        return Joined(self.scenario, began, self.clock(), self.seen)

    def _send(self, client: Client) -> None:
        number = len(self.names)
        self.names.append(client.name)
        prompt = self.prompt(client.name, client.prompt_rows)
        self.seen[client.name] = Seen(self.clock())
        options = SamplingOptions(max_tokens=client.reply_tokens, ignore_eos=True)
        self.scheduler.submit(number, TokenRequest(prompt, options))

    def _turn(self) -> None:
        for event in self.scheduler.turn():
            if isinstance(event, Drawn):
                seen = self.seen[self.names[event.request_id]]
                seen.at.append(self.clock())
                seen.counts.append(len(event.draws))
                seen.tokens += [draw.token_id for draw in event.draws]
            elif isinstance(event, Ended):
                if event.error is not None:
                    raise EngineError(f"{self.names[event.request_id]}: {event.error}")
                self.seen[self.names[event.request_id]].ended = self.clock()
