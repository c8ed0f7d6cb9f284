"""One decode window over several slots: verify drafts, draw tokens, commit what stands, draft again.

Knows how rows, draws and commits belong together; a row's bits do not depend on the rows beside it.

A slot's rows are its last token and its drafts. Row i gives the logits from which the token at position
`slot.position + i + 1` is drawn, always with that position's own draw: drafts change how many rows a window has, never
which token comes out.

    rows    last   d0     d1     d2        here d0 = t0 and d1 = t1, but d2 is not t2:
    draws   t0     t1     t2     -         t0 t1 t2 come out; the rows last, d0, d1 are committed

Of tokens behind the one that ends the reply nothing is committed: a state never goes on past the reply's last token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import torch

from strata.engine.reader import guess_ahead
from strata.engine.reply import Reply
from strata.engine.slot import Slot
from strata.models.base import Segment, WindowResult
from strata.sampling.draw import Draw
from strata.types import FinishReason

Result = TypeVar("Result")


@dataclass(frozen=True)
class WindowPart:
    """One slot's share of a window."""

    slot: Slot
    reply: Reply
    drafts: tuple[int, ...]

    @property
    def rows(self) -> torch.Tensor:
        """The tokens whose rows are computed."""
        return torch.tensor([self.reply.last_token, *self.drafts])


@dataclass(frozen=True)
class WindowOutcome:
    """The tokens that came out of one part, in order, and why its reply ends with them if it does."""

    draws: tuple[Draw, ...]
    reason: FinishReason | None


class ComputesWindows(Protocol):
    """What computes windows whose tokens the host chooses: a `LanguageModel`, or it for the slots of one group."""

    def window(self, segments: Sequence[Segment]) -> WindowResult:
        """See `LanguageModel.window`."""
        ...

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        """See `LanguageModel.commit`."""
        ...


def run_window(
    model: ComputesWindows, parts: Sequence[WindowPart], depth: int, is_survivable: Callable[[Exception], bool]
) -> list[WindowOutcome | Exception]:
    """One window; each part's slot moves on by the rows whose tokens stand, all of them by one commit.

    A failure of one part alone is its outcome if `is_survivable` says so, and one of the commit that of every part. One
    that the model has before is raised; then no state has changed.
    """
    for part in parts:
        part.reply.sampler.prepare(part.drafts)
    window = model.window([Segment(part.slot.state, part.rows) for part in parts])
    counts = [1 + len(part.drafts) for part in parts]
    logits, hidden = window.output.logits.split(counts), window.output.hidden.split(counts)
    drawn = [_tried(partial(_draw, *each), is_survivable) for each in zip(parts, logits, strict=True)]
    accepted = [0 if isinstance(found, Exception) else len(found.draws) for found in drawn]
    failure = _tried(partial(model.commit, window, accepted), is_survivable)
    outcomes: list[WindowOutcome | Exception] = []
    for part, rows, found in zip(parts, hidden, drawn, strict=True):
        if isinstance(found, WindowOutcome):
            found = _tried(partial(_move_on, part, found, rows, depth), is_survivable) if failure is None else failure
        outcomes.append(found)
    return outcomes


def _draw(part: WindowPart, logits: torch.Tensor) -> WindowOutcome:
    draws = part.reply.sampler.verify(logits, part.slot.position + 1, part.drafts)
    return WindowOutcome(*part.reply.take(draws))


def _move_on(part: WindowPart, outcome: WindowOutcome, hidden: torch.Tensor, depth: int) -> WindowOutcome:
    """What follows from the rows of a part that have become state."""
    part.slot.note_progress()
    committed = len(outcome.draws)
    depth = depth if outcome.reason is None else 0
    guess_ahead(part.slot, part.reply, hidden[:committed], part.rows[:committed], depth)
    return outcome


def _tried(action: Callable[[], Result], is_survivable: Callable[[Exception], bool]) -> Result | Exception:
    """What an action gives, or the failure that only its own part ends with."""
    try:
        return action()
    except Exception as failure:
        if not is_survivable(failure):
            raise
        return failure
