"""What the scheduler asks of the engine and what it hears: one step at a time, slots by their number.

Values only, of integers and tokens; neither side knows more of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from strata.engine.request import TokenRequest
from strata.sampling.draw import Draw
from strata.types import FinishReason


class Preparation(Protocol):
    """Work for a request that goes on beside the steps, before it gets a slot: its grammar is being compiled."""

    @property
    def is_done(self) -> bool:
        """Whether `result` answers at once."""
        ...

    def result(self) -> Any:
        """What the request is opened with. Raises RequestError if it cannot be served."""
        ...


@dataclass(frozen=True)
class Open:
    """Put a request into a slot, behind the first `position` rows of the `source` slot's conversation.

    `source` may be the slot itself, which then goes back or on, or another one, idle or not, which stays as it is.
    `position` is one of the source's points or lies within its last reply.
    """

    slot: int
    request: TokenRequest
    source: int | None = None  # None: an empty state
    position: int = 0
    prepared: Any = None  # the result of the request's preparation


@dataclass(frozen=True)
class Read:
    """Read the slot's prompt up to row `stop`; with its last row comes the first token of the reply.

    The engine does one step of it, mostly a layer, and says in its result whether the piece is through; until then the
    next read of this slot is the same one.
    """

    slot: int
    stop: int
    points: tuple[int, ...] = ()  # rows up to `stop` behind which another request may go on: rising, multiples of 64


@dataclass(frozen=True)
class Abandon:
    """Give up the piece of a prompt that is being read into a slot: its request has ended."""

    slot: int


@dataclass(frozen=True)
class Window:
    """One decode window for several slots, with at most so many drafts for each."""

    most_drafts: Mapping[int, int]
    goes_on: bool = False  # nothing is being read: the next step is likely to be these replies' next window


Step = Open | Read | Window | Abandon


@dataclass(frozen=True)
class SlotResult:
    """What a step gave for one slot, or what a window gave for it that was under way when the step came.

    With a reason the reply has ended; with an error the slot is empty, too.
    """

    slot: int
    draws: tuple[Draw, ...] = ()
    reason: FinishReason | None = None
    error: str | None = None
    is_callers_mistake: bool = False
    drafted: int = 0
    accepted: int = 0
    prompt_logprobs: tuple[Draw, ...] | None = None  # with the last row of a prompt, if they were asked for
    is_under_way: bool = False  # a read has not come to its `stop` yet
    points: tuple[int, ...] = ()  # rows behind which another request may go on, rising
    others: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # the same of slots that gave some up for it
    notices: tuple[str, ...] = ()
