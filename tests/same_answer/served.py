"""A real model behind a scheduler, and what came of a list of requests: tokens and the bits of their logprobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.engine.engine import TokenEngine
from strata.engine.messages import Drawn, Ended, FromEngine, ReadProgress
from strata.engine.points import PointBudget
from strata.engine.request import TokenRequest
from strata.engine.steps import ParkingSpace
from strata.models.base import LanguageModel
from strata.sampling.draw import Draw
from strata.sampling.options import SamplingOptions
from strata.scheduler.due import Limits
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings
from strata.types import FinishReason


@dataclass
class Answer:
    """What one request got."""

    draws: list[Draw] = field(default_factory=list)
    ended: Ended | None = None

    @property
    def token_ids(self) -> list[int]:
        return [draw.token_id for draw in self.draws]

    @property
    def bits(self) -> list[tuple[int, str]]:
        """Tokens with their log-probabilities, exactly."""
        return [(draw.token_id, (draw.logprob or 0.0).hex()) for draw in self.draws]

    @property
    def cached(self) -> int:
        assert self.ended is not None
        return self.ended.usage.cached_tokens


class Served:
    """An engine of its own with empty slots; requests are numbered by the caller."""

    def __init__(
        self,
        model: LanguageModel,
        slots: int = 1,
        *,
        turn_state: str = "kept",
        points: PointBudget | None = None,
        parking: ParkingSpace | None = None,
        **settings: Any,
    ) -> None:
        values = EngineSettings(threads=1, turn_state=turn_state, **settings)
        engine = TokenEngine(model, values, points=points, parking=parking)
        self.scheduler = Scheduler(engine, Limits.of(values, slots, engine.chunk_rows))
        self.answers: dict[int, Answer] = {}
        self.events: list[FromEngine] = []

    def submit(self, number: int, request: TokenRequest) -> None:
        self.answers[number] = Answer()
        self.scheduler.submit(number, request)

    def turn(self) -> list[FromEngine]:
        events = self.scheduler.turn()
        for event in events:
            if isinstance(event, Drawn):
                self.answers[event.request_id].draws += event.draws
            elif isinstance(event, Ended):
                self.answers[event.request_id].ended = event
        self.events += events
        return events

    def until(self, is_reached: Callable[[FromEngine], bool]) -> None:
        """Turns until an event for which that is so."""
        while not any(map(is_reached, self.turn())):
            assert self.scheduler.has_work, "it never happened"

    def finish(self) -> None:
        while self.scheduler.has_work:
            self.turn()

    def ask(self, request: TokenRequest) -> Answer:
        """One request, to its end."""
        number = len(self.answers) + 1000
        self.submit(number, request)
        self.finish()
        return self.answers[number]


def request(prompt: Sequence[int], max_tokens: int = 8, **options: Any) -> TokenRequest:
    """Greedy with logprobs unless the options say otherwise."""
    stop = frozenset(options.pop("stop_ids", ()))
    choice, boundaries = options.pop("choice", 0), tuple(options.pop("boundaries", ()))
    wanted = {"logprobs": 2, "max_tokens": max_tokens, "ignore_eos": True, **options}
    return TokenRequest(tuple(prompt), SamplingOptions(**wanted), stop, choice, boundaries=boundaries)


def text(count: int, salt: int, vocabulary: int = 4000) -> list[int]:
    """Token ids that look like nothing in particular."""
    return [(place * place * 31 + place * 17 + salt * 7919) % (vocabulary - 300) + 300 for place in range(count)]


def is_read(number: int, rows: int) -> Callable[[FromEngine], bool]:
    """Whether so many rows of a request's prompt are part of a state."""
    return lambda event: isinstance(event, ReadProgress) and event.request_id == number and event.done >= rows


def has_drawn(number: int) -> Callable[[FromEngine], bool]:
    """Whether a token of the request has come."""
    return lambda event: isinstance(event, Drawn) and event.request_id == number


def assert_whole(answer: Answer, reason: FinishReason = FinishReason.LENGTH) -> None:
    assert answer.ended is not None
    assert (answer.ended.reason, answer.ended.error) == (reason, None)
