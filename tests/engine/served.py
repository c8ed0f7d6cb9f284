"""A scheduler over any engine, and what came of each request: tokens in order, one end. Knows no test."""

from collections.abc import Sequence
from typing import Any

from strata.engine.engine import TokenEngine
from strata.engine.messages import Drawn, Ended
from strata.engine.request import TokenRequest
from strata.sampling.options import SamplingOptions
from strata.scheduler.due import Limits
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings

SETTINGS = EngineSettings(threads=1, chunk_rows=64)


class Served:
    """Requests are numbered by the caller."""

    def __init__(self, engine: TokenEngine, slots: int, groups: int = 1) -> None:
        self.engine = engine
        self.scheduler = Scheduler(engine, Limits.of(SETTINGS, slots, engine.chunk_rows, groups=groups))
        self.replies: dict[int, list[int]] = {}
        self.ends: dict[int, Ended] = {}

    def submit(self, number: int, request: TokenRequest) -> None:
        self.replies[number] = []
        self.scheduler.submit(number, request)

    def turn(self) -> None:
        for event in self.scheduler.turn():
            if isinstance(event, Drawn):
                assert event.request_id not in self.ends, "nothing comes behind the end"
                self.replies[event.request_id] += [draw.token_id for draw in event.draws]
            elif isinstance(event, Ended):
                assert event.request_id not in self.ends, "a request ends once"
                self.ends[event.request_id] = event

    def finish(self) -> None:
        while self.scheduler.has_work:
            self.turn()

    def ask(self, request: TokenRequest) -> list[int]:
        """One request, to its end."""
        number = 1000 + len(self.replies)
        self.submit(number, request)
        self.finish()
        assert self.ends[number].error is None
        return self.replies[number]


def ask(prompt: Sequence[int], max_tokens: int, stop: Sequence[int] = (), **options: Any) -> TokenRequest:
    """Greedy unless the options say otherwise."""
    return TokenRequest(tuple(prompt), SamplingOptions(max_tokens=max_tokens, **options), frozenset(stop))
