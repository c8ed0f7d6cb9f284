"""What the slots hold, and where a prompt may go on. Pure: books over tokens and positions, no state of a model.

    tokens    the conversation, a prompt while it is served, prompt and reply afterwards
    points    rows behind which any prompt that has the same tokens may go on
    turn_end  the last row of the conversation that is state: its next turn goes on there (a *kept* turn)

Reading on from a point inside rows that were only ever read, at a multiple of 64, gives the bits of a fresh read. A
kept turn goes on behind rows that were decoded, which is another arithmetic; `turn_state` says whether that is wanted.

A prompt that needs a slot of its own takes the one with the lowest rank (as GreedyDual-Size does). A rank is what
reading the conversation again would cost, more if it was gone on with, on top of the rank that the last conversation
had which gave way: what is not used is overtaken, the later the longer it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.engine.request import TokenRequest
from strata.scheduler.places import GRID
from strata.scheduler.request import Run

_COMPARED = 1024  # tokens at once
# A first reply this short is likely an aside - a title, tags - that nobody goes on with, whatever its prompt quotes.
ASIDE_TOKENS = 128
LEAST_WEIGHT, GONE_ON_WEIGHT = 1 / 16, 2.0


@dataclass
class SlotBook:
    """One slot."""

    index: int
    run: Run | None = None
    tokens: tuple[int, ...] = ()
    points: tuple[int, ...] = ()
    turn_end: int | None = None
    read_only: int = 0  # leading rows that were only ever read
    last_use: int = 0  # rises with every use of any slot
    last_request: int | None = None
    prompt_tokens: int = 0  # of that request
    turns: int = 0  # requests that went on with one another here
    worth: float = 0.0  # what reading it again would cost, in rows
    rank: float = 0.0  # who gives way first

    @property
    def is_idle(self) -> bool:
        """Whether another request may have it."""
        return self.run is None

    def begin(self, run: Run, start: "Start", source: "SlotBook | None") -> None:
        """A request is put into the slot; `source` is where its first rows come from, perhaps the slot itself."""
        if source is None or source.is_pure(start.position):
            self.read_only = len(run.request.prompt)
        else:
            self.read_only = min(source.read_only, start.position)
        goes_on = source is not None and (source is self or start.takes_over)
        self.turns = source.turns + 1 if source is not None and goes_on else 1
        self.run, self.tokens, self.turn_end = run, run.request.prompt, None
        self.last_request, self.prompt_tokens = run.request_id, len(run.request.prompt)

    def end(self, use: int, kept_reply: int | None = None, floor: float = 0.0) -> None:
        """The request has ended; of its reply the first `kept_reply` tokens belong to the conversation (None: all).

        floor: the rank of the last conversation that gave way.
        """
        run = self.run
        assert run is not None, "there is a request to end"
        self.run, self.last_use = None, use
        if run.first_token is None:
            self.tokens = self.tokens[: max((run.read_rows, *self.points))]  # the last may lie inside a step
        else:
            self.tokens = (*run.request.prompt, *run.reply)
            self.keep_reply(len(run.reply) if kept_reply is None else kept_reply)
        of_first = max(LEAST_WEIGHT, min(1.0, len(run.reply) / ASIDE_TOKENS))
        self.worth = len(self.tokens) * (of_first if self.turns == 1 else GONE_ON_WEIGHT)
        self.rank = floor + self.worth

    def keep_reply(self, kept: int) -> None:
        """Cut the conversation behind `kept` tokens of the last reply. The last of them is not state yet.

        With none or one of them nothing was decoded that a next turn could go on behind.
        """
        self.tokens = self.tokens[: self.prompt_tokens + kept]
        decoded = len(self.tokens) - self.prompt_tokens - 1
        self.turn_end = self.prompt_tokens + decoded if decoded > 0 else None

    def clear(self, use: int) -> None:
        """Its state is gone."""
        self.run, self.tokens, self.points, self.turn_end = None, (), (), None
        self.read_only, self.last_use, self.last_request = 0, use, None
        self.turns, self.worth, self.rank = 0, 0.0, 0.0

    def is_pure(self, position: int) -> bool:
        """Whether reading on behind `position` gives the bits of a fresh read."""
        return position <= self.read_only and position % GRID == 0


@dataclass(frozen=True)
class Start:
    """Where a prompt is put, and how much of it is there already."""

    slot: int
    source: int | None = None
    position: int = 0
    takes_over: bool = False  # the source is a parked conversation that moves into the slot
    cuts_short: bool = False  # it is the slot's own conversation, of which little would be left

    @property
    def displaces(self) -> bool:
        """Whether what the slot holds is lost unless it is parked."""
        return self.source != self.slot or self.cuts_short


def choose_start(
    request: TokenRequest, slots: Sequence[SlotBook], parked: Sequence[SlotBook] = (), *, keep_turns: bool
) -> Start:
    """The longest beginning of the prompt that a slot or a parked conversation holds. One slot at least is idle.

    In place if the prompt goes on from most of what the slot holds, and from more than a system prompt, or if no other
    slot is idle. Otherwise the slot with the lowest rank gives up what it has, and the beginning is copied there, or
    moved if it is parked and the prompt goes on with it. Log-probabilities of a prompt need all of it to be read.
    """
    idle = sorted((slot for slot in slots if slot.is_idle), key=lambda slot: (slot.rank, slot.last_use))
    reuse = {book.index: reusable_rows(request.prompt, book, keep_turns=keep_turns) for book in (*slots, *parked)}
    places = {book.index for book in parked}
    best = max(
        (*slots, *parked),
        key=lambda book: (reuse[book.index], book.is_idle, book.index not in places, book.last_use),
    )
    rows = reuse[best.index]
    if rows == 0 or request.prompt_logprobs is not None:
        return Start(idle[0].index)
    others = [slot for slot in idle if slot is not best]
    goes_on = 2 * rows >= len(best.tokens) and not shares_opening_alone(request, best.tokens, rows)
    if best.index in places:
        return Start(idle[0].index, best.index, rows, takes_over=goes_on)
    if best.is_idle and (goes_on or not others):
        return Start(best.index, best.index, rows, cuts_short=not goes_on)
    return Start(others[0].index, best.index, rows)


def shares_opening_alone(request: TokenRequest, tokens: tuple[int, ...], rows: int) -> bool:
    """Whether a prompt has the system prompt of a conversation and another first message. rows: it may go on behind."""
    if len(request.boundaries) < 2:
        return False  # no system prompt, or nobody knows
    opening, first_reply = request.boundaries[:2]
    return rows <= opening and common_prefix(request.prompt, tokens) < first_reply


def reusable_rows(prompt: tuple[int, ...], slot: SlotBook, *, keep_turns: bool) -> int:
    """Rows of the slot behind which the prompt may go on; one row at least is left to read."""
    most = min(common_prefix(prompt, slot.tokens), len(prompt) - 1)
    return max((place for place in kept_places(slot, keep_turns=keep_turns) if place <= most), default=0)


def kept_places(slot: SlotBook, *, keep_turns: bool) -> Sequence[int]:
    """Rows of the slot behind which a prompt that has the same tokens may go on."""
    places = [*slot.points, slot.turn_end] if slot.is_idle and slot.turn_end is not None else slot.points
    return [place for place in places if keep_turns or slot.is_pure(place)]


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    start = 0
    while start < length and one[start : start + _COMPARED] == other[start : start + _COMPARED]:
        start = min(length, start + _COMPARED)
    while start < length and one[start] == other[start]:
        start += 1
    return start
