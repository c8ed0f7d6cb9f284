"""Requests that get in each other's way on purpose, and whether each gets the tokens that it gets alone.

    A and B decode | C, long, is read beside them | D, long, is read | E, short, comes: D gives way and goes on behind E
    then, beside H: the next turn from E's slot, and F, stopped after some tokens
    then, alone: F continued, and E's history sent again without the first tokens of its reply

The negative control: where a prompt is one run that nobody passes, D must not give way. Knows a scheduler over an
engine; knows no model and no text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from strata.bench.join_modes import JoinMode, Served
from strata.engine.engine import TokenEngine
from strata.engine.messages import Drawn, Ended, FromEngine, ReadProgress
from strata.engine.request import TokenRequest
from strata.errors import EngineError
from strata.sampling.options import SamplingOptions
from strata.scheduler.read_modes import ReadMode
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings

REASONING = 2  # tokens of a reply that are not sent again
LONG_PIECES, LONGER_PIECES = 40_000 / 16_384, 3.5
LEAST_SLOTS, LEAST_PIECE = 4, 128  # with a smaller one there is no point inside a short prompt
ALONE = JoinMode(ReadMode.WHOLE)


@dataclass(frozen=True)
class InterleavePlan:
    """Sizes, in tokens."""

    piece: int = 16_384  # whole chunks
    short: int = 200
    stream_tokens: int = 120
    reply_tokens: int = 16
    stopped_tokens: int = 50  # behind which F's client leaves
    seed: int = 0

    @classmethod
    def few(cls) -> "InterleavePlan":
        """Replies of a few tokens."""
        return cls(stream_tokens=12, reply_tokens=4, stopped_tokens=5)

    def with_piece(self, piece: int) -> "InterleavePlan":
        """With short prompts that are short beside such a piece, so that D lets one pass."""
        return replace(self, piece=piece, short=min(self.short, 5 * piece // 8))

    @property
    def prompts(self) -> dict[str, int]:
        """Rows of every client's prompt, by its name."""
        long = {"C": round(LONG_PIECES * self.piece), "D": round(LONGER_PIECES * self.piece)}
        return {
            "A": self.short,
            "B": self.short + 7,
            **long,
            "E": self.short,
            "F": self.short + 30,
            "H": self.short + 3,
        }

    @property
    def context(self) -> int:
        """The most that one conversation has in the end."""
        return max(
            self.prompts["D"] + self.reply_tokens, 3 * self.short + 60 + self.stream_tokens + 2 * self.stopped_tokens
        )


@dataclass(frozen=True)
class InterleaveMode:
    """A read mode, or `whole` as it is with several stages and groups: a prompt is one run."""

    mode: JoinMode
    is_piped: bool

    @property
    def name(self) -> str:
        """For a table."""
        return f"{self.mode.name}, one run" if self.is_uncut else self.mode.name

    @property
    def is_uncut(self) -> bool:
        """Whether nobody passes a prompt that is being read."""
        return self.is_piped and self.mode.mode is ReadMode.WHOLE


@dataclass(frozen=True)
class Check:
    """One thing that must be so."""

    what: str
    is_good: bool
    found: str = ""


@dataclass
class Answer:
    """What one request got."""

    request: TokenRequest
    tokens: list[int] = field(default_factory=list)
    ended: Ended | None = None
    read_rows: int = 0

    @property
    def cached(self) -> int:
        """Rows that it did not read."""
        return 0 if self.ended is None else self.ended.usage.cached_tokens

    @property
    def conversation(self) -> tuple[int, ...]:
        """Prompt and reply."""
        return (*self.request.prompt, *self.tokens)


class Clients:
    """Requests by name over an emptied engine. Raises EngineError for one that fails."""

    def __init__(self, engine: TokenEngine, served: Served, settings: EngineSettings, mode: JoinMode) -> None:
        engine.forget_all()
        self.scheduler = Scheduler(engine, mode.limits(settings, served))
        self.answers: dict[str, Answer] = {}
        self.order: list[str] = []  # of first tokens
        self._names: list[str] = []  # by number

    def send(self, name: str, prompt: Sequence[int], tokens: int) -> Answer:
        """Greedy, to so many tokens."""
        request = TokenRequest(tuple(prompt), SamplingOptions(max_tokens=tokens, ignore_eos=True))
        answer = self.answers[name] = Answer(request)
        self._names.append(name)
        self.scheduler.submit(len(self._names) - 1, request)
        return answer

    def stop(self, name: str, kept: int) -> None:
        """Its client has had enough."""
        self.scheduler.cancel(self._names.index(name), kept)
        self.until(lambda: self.answers[name].ended is not None)
        del self.answers[name].tokens[kept:]

    def until(self, is_reached: Callable[[], bool]) -> None:
        """Turns until it is so. Raises EngineError if it never happens."""
        while not is_reached():
            if not self.scheduler.has_work:
                raise EngineError("what the interleave test waits for never happened")
            self.turn()

    def turn(self) -> None:
        """One step."""
        for event in self.scheduler.turn():
            self._take(event)

    def finish(self) -> None:
        """Turns until nothing is under way."""
        self.until(lambda: not self.scheduler.has_work)

    def _take(self, event: FromEngine) -> None:
        if isinstance(event, ReadProgress):
            self.answers[self._names[event.request_id]].read_rows = event.done
        elif isinstance(event, Drawn):
            name = self._names[event.request_id]
            if name not in self.order:
                self.order.append(name)
            self.answers[name].tokens += [draw.token_id for draw in event.draws]
        elif isinstance(event, Ended):
            name = self._names[event.request_id]
            if event.error is not None:
                raise EngineError(f"{name}: {event.error}")
            self.answers[name].ended = event


@dataclass
class Interleave:
    """The test over one engine."""

    engine: TokenEngine
    served: Served
    settings: EngineSettings
    plan: InterleavePlan
    _alone: dict[str, list[int]] = field(default_factory=dict)

    def run(self, mode: InterleaveMode) -> list[Check]:
        """Everything in one mode."""
        served = replace(self.served, is_piped=mode.is_piped)
        clients = Clients(self.engine, served, self.settings, mode.mode)
        checks = [*self._beside_a_long_read(clients, mode), *self._giving_way(clients, mode)]
        self._next_turns(clients)
        return [*checks, *self._kept(clients), *self._tokens(clients)]

    def _prompt(self, name: str) -> tuple[int, ...]:
        return made_up_tokens(name, self.plan.prompts[name], self.engine.model.vocabulary_size, self.plan.seed)

    def _more(self, name: str) -> tuple[int, ...]:
        """What a next turn adds."""
        return made_up_tokens(f"more {name}", self.plan.short, self.engine.model.vocabulary_size, self.plan.seed)

    def _beside_a_long_read(self, clients: Clients, mode: InterleaveMode) -> list[Check]:
        """A and B decode while C is read."""
        streams = [clients.send(name, self._prompt(name), self.plan.stream_tokens) for name in "AB"]
        clients.until(lambda: all(stream.tokens for stream in streams))
        begun = [len(stream.tokens) for stream in streams]
        long = clients.send("C", self._prompt("C"), self.plan.reply_tokens)
        clients.until(lambda: bool(long.tokens))
        got = [len(stream.tokens) - before for stream, before in zip(streams, begun, strict=True)]
        runs = clients.scheduler.statistics().read_runs - len(streams)
        clients.until(lambda: long.ended is not None)
        is_good = max(got) <= 1 if mode.is_uncut else min(got) > 1
        what = "A and B stand still while C is read" if mode.is_uncut else "A and B decode while C is read"
        checks = [Check(what, is_good, f"{got[0]} and {got[1]} tokens")]
        if mode.mode.mode is ReadMode.PIECES:
            checks.append(Check("C is read in three pieces", runs == 3, f"{runs} pieces"))
        return checks

    def _giving_way(self, clients: Clients, mode: InterleaveMode) -> list[Check]:
        """D is begun, E comes, D gives way unless nobody passes it."""
        before = clients.scheduler.statistics().give_ways
        long = clients.send("D", self._prompt("D"), self.plan.reply_tokens)
        clients.until(lambda: long.read_rows > 0)
        clients.turn()  # somewhere inside the next chunk
        short = clients.send("E", self._prompt("E"), self.plan.reply_tokens)
        clients.until(lambda: bool(short.tokens or long.tokens))
        rows, times = long.read_rows, clients.scheduler.statistics().give_ways - before
        clients.finish()
        is_first = clients.order.index("E") < clients.order.index("D")
        found = f"{times} times, E is {'before' if is_first else 'behind'} D, which had {rows:,} rows"
        if mode.is_uncut:
            return [Check("D does not give way", times == 0 and not is_first, found)]
        is_good = times == 1 and is_first and rows < self.plan.prompts["D"]
        if mode.mode.mode is ReadMode.PIECES:
            is_good = is_good and rows > 0 and rows % self.plan.piece == 0
        return [Check("D gives way to E and goes on", is_good, found)]

    def _next_turns(self, clients: Clients) -> None:
        """Beside H, and alone."""
        self._second_turn(clients)
        stream = clients.send("H", self._prompt("H"), self.plan.stream_tokens)
        clients.until(lambda: bool(stream.tokens))
        self._stopped(clients)
        clients.finish()
        self._continued(clients)
        self._without_reasoning(clients)

    def _second_turn(self, clients: Clients) -> None:
        clients.send("E2", (*clients.answers["E"].conversation, *self._more("E2")), self.plan.reply_tokens)

    def _stopped(self, clients: Clients) -> None:
        answer = clients.send("F", self._prompt("F"), 2 * self.plan.stopped_tokens)
        clients.until(lambda: len(answer.tokens) >= self.plan.stopped_tokens)
        clients.stop("F", self.plan.stopped_tokens)

    def _continued(self, clients: Clients) -> None:
        clients.send("F2", clients.answers["F"].conversation, self.plan.reply_tokens)
        clients.finish()

    def _without_reasoning(self, clients: Clients) -> None:
        before = clients.answers["E"]
        history = (*before.request.prompt, *before.tokens[REASONING:], *self._more("G"))
        clients.send("G", history, self.plan.reply_tokens)
        clients.finish()

    def _kept(self, clients: Clients) -> list[Check]:
        """The next turns went on from where they should."""
        answers = clients.answers
        wanted = {"E2": len(answers["E"].conversation) - 1, "F2": len(answers["F"].conversation) - 1}
        checks = [
            Check(
                f"{name} goes on from what its slot keeps",
                answers[name].cached == rows,
                f"{answers[name].cached:,} rows",
            )
            for name, rows in wanted.items()
        ]
        rows = answers["G"].cached
        return [*checks, Check("G goes on from within E's prompt", 0 < rows <= self.plan.short, f"{rows:,} rows")]

    def _tokens(self, clients: Clients) -> list[Check]:
        """Every request's tokens beside those it gets alone."""
        if not self._alone:
            self._alone = self._answers_alone()
        checks = []
        for name, answer in clients.answers.items():
            wanted = self._alone[name]
            is_good, pairs = answer.tokens == wanted, zip(answer.tokens, wanted, strict=False)
            same = next((place for place, (own, other) in enumerate(pairs) if own != other), None)
            parts = f"parts at token {same}, {len(answer.tokens)} of {len(wanted)}"
            found = f"{len(wanted)} tokens" if is_good else parts
            checks.append(Check(f"{name} gets its tokens", is_good, found))
        return checks

    def _answers_alone(self) -> dict[str, list[int]]:
        """Each conversation on an emptied engine, one request after the other."""
        found = {}
        tokens = dict.fromkeys("ABH", self.plan.stream_tokens)
        for name in "ABCDEH":
            clients = self._by_itself()
            clients.send(name, self._prompt(name), tokens.get(name, self.plan.reply_tokens))
            clients.finish()
            if name == "E":
                self._second_turn(clients)
                clients.finish()
            found.update({each: answer.tokens for each, answer in clients.answers.items()})
        clients = self._by_itself()
        self._stopped(clients)
        self._continued(clients)
        found.update({each: answer.tokens for each, answer in clients.answers.items()})
        clients = self._by_itself()  # all of it is read again
        answer = Answer(TokenRequest(self._prompt("E"), SamplingOptions()), found["E"])
        clients.answers["E"] = answer
        self._without_reasoning(clients)
        return {**found, "G": clients.answers["G"].tokens}

    def _by_itself(self) -> Clients:
        return Clients(self.engine, replace(self.served, is_piped=False), self.settings, ALONE)


def made_up_tokens(name: str, count: int, vocabulary: int, seed: int = 0) -> tuple[int, ...]:
    """Token ids that look like nothing in particular, others for every name."""
    salt = seed * 7919 + sum(place * byte for place, byte in enumerate(name.encode(), 1))
    low = min(300, vocabulary // 4)
    return tuple(
        (place * place * 31 + place * (17 + salt % 101) + salt) % (vocabulary - low) + low for place in range(count)
    )


def interleave_modes(piece: int) -> tuple[InterleaveMode, ...]:
    """All of them, the negative control among them."""
    return (
        InterleaveMode(JoinMode(ReadMode.WHOLE), is_piped=False),
        InterleaveMode(JoinMode(ReadMode.WHOLE), is_piped=True),
        InterleaveMode(JoinMode(ReadMode.PIECES, piece), is_piped=True),
        InterleaveMode(JoinMode(ReadMode.LAYERS), is_piped=True),
    )
