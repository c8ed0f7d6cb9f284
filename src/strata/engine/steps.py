"""What the scheduler asks of the engine and what it hears: one step at a time, slots by their number.

Values only, of integers and tokens; neither side knows more of the other.
"""

import math
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
class ParkingSpace:
    """Main memory for conversations whose slots are wanted, in bytes; there is none where `limit` is 0."""

    limit: int = 0
    fixed: int = 0  # of any conversation
    per_token: float = 0.0

    def size(self, rows: int) -> int:
        """What a conversation of so many rows takes at most; rows come in sixty-fours."""
        return self.fixed + math.ceil(self.per_token * (-(-rows // 64) * 64))


@dataclass(frozen=True)
class Park:
    """Move what a slot holds to a *place* in main memory, where nothing is. Places have the numbers behind the slots'.

    tokens: of the rows that are kept, up to a point or within its last reply; later rows are lost.
    """

    place: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Open:
    """Put a request into a slot, behind the first `position` rows of the `source` slot's conversation.

    `source` may be the slot itself, which then goes back or on, or another one, idle or not, which stays as it is, or
    a place with a parked conversation, which is copied, or moved if its place is `dropped`. `position` is one of the
    source's points or lies within its last reply; of a parked one it is a point or its end.
    """

    slot: int
    request: TokenRequest
    source: int | None = None  # None: an empty state
    position: int = 0
    prepared: Any = None  # the result of the request's preparation
    park: Park | None = None  # before anything else: what the slot holds
    dropped: tuple[int, ...] = ()  # places whose conversations give way to it, and that of a source that moves


@dataclass(frozen=True)
class Read:
    """Read the slot's prompt up to row `stop`; with its last row comes the first token of the reply.

    `stop` is the end of a chunk, or, where the engine reads runs, of as many as pass it with nothing that must come in
    between. The engine does one step of it, mostly a layer, and says in its result whether the piece is through; until
    then the next read of this slot is the same one. Other slots may be opened and read between two of its steps: it
    *gives way*, what is under way is set aside, and it goes on later.
    """

    slot: int
    stop: int
    points: tuple[int, ...] = ()  # rows up to `stop` behind which another request may go on: rising, multiples of 64


@dataclass(frozen=True)
class Abandon:
    """Give up the piece of a prompt that is under way in a slot, set aside or not: its request has ended."""

    slot: int


@dataclass(frozen=True)
class Window:
    """One decode window for several slots, with at most so many drafts for each.

    Each group's window is launched before that of the first one has landed. A model without groups takes all together.
    """

    most_drafts: Mapping[int, int]
    goes_on: bool = False  # the next step is likely to be these replies' next window
    groups: Mapping[int, int] = field(default_factory=dict)  # of slots; one that is not named: 0


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
    read_rows: int | None = None  # of its prompt so far, if it is past whole chunks of a run
    points: tuple[int, ...] = ()  # rows behind which another request may go on, rising
    others: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # the same of slots that gave some up for it
    notices: tuple[str, ...] = ()
    is_parked: bool = False  # of an open that was to park something: it is there, otherwise it is lost
    begins_anew: bool = False  # of an open: its source could not be brought back, the slot is empty
