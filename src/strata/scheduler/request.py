"""A request from its arrival to its end, and what it has taken so far. Knows token ids; no model and no clock."""

from dataclasses import dataclass, field

from strata.engine.request import TokenRequest
from strata.engine.steps import Preparation, SlotResult
from strata.scheduler.places import points_wanted
from strata.types import Usage


@dataclass
class Run:
    """One request; times are of the scheduler's clock."""

    request_id: int
    request: TokenRequest
    arrived: float
    preparation: Preparation | None = None
    points: tuple[int, ...] = field(init=False)  # of the prompt, worth going on from
    opened: float | None = None  # put into a slot
    read_rows: int = 0  # of the prompt, part of the state
    cached: int = 0  # of them, those that a slot had already
    first_token: float | None = None
    last_token: float | None = None
    reply: list[int] = field(default_factory=list)
    windows: int = 0
    drafted: int = 0
    accepted: int = 0
    longest_gap: float = 0.0  # between two windows
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.points = points_wanted(len(self.request.prompt), self.request.boundaries)

    @property
    def is_ready(self) -> bool:
        """Whether it may be put into a slot."""
        return self.preparation is None or self.preparation.is_done

    def take(self, result: SlotResult, now: float) -> None:
        """Tokens came, from the end of the prompt or from a window."""
        self.reply += [draw.token_id for draw in result.draws]
        self.drafted += result.drafted
        self.accepted += result.accepted
        if self.last_token is None:
            self.first_token = now
        else:
            self.windows += 1
            self.longest_gap = max(self.longest_gap, now - self.last_token)
        self.last_token = now

    def usage(self, now: float, handed_out: int | None = None) -> Usage:
        """As a caller sees it. handed_out: tokens of the reply that count, None: all."""
        opened = now if self.opened is None else self.opened
        read_done = now if self.first_token is None else self.first_token
        last = read_done if self.last_token is None else self.last_token
        return Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=len(self.reply) if handed_out is None else handed_out,
            windows=self.windows,
            drafted_tokens=self.drafted,
            accepted_drafts=self.accepted,
            read_seconds=read_done - opened,
            decode_seconds=last - read_done,
            cached_tokens=self.cached,
            waiting_seconds=opened - self.arrived,
        )
