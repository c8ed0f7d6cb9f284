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

import torch

from strata.engine.reader import guess_ahead
from strata.engine.reply import Reply
from strata.engine.slot import Slot
from strata.models.base import LanguageModel, Segment, WindowResult
from strata.sampling.draw import Draw
from strata.types import FinishReason


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


def run_window(
    model: LanguageModel, parts: Sequence[WindowPart], depth: int, is_survivable: Callable[[Exception], bool]
) -> list[WindowOutcome | Exception]:
    """One window; each part's slot moves on by the rows whose tokens stand.

    A failure of one part alone is its outcome if `is_survivable` says so. One that the model has with all parts
    together is raised; then no state has changed.
    """
    for part in parts:
        part.reply.sampler.prepare(part.drafts)
    window = model.window([Segment(part.slot.state, part.rows) for part in parts])
    outcomes: list[WindowOutcome | Exception] = []
    first = 0
    for index, part in enumerate(parts):
        rows = slice(first, first + 1 + len(part.drafts))
        first = rows.stop
        try:
            outcomes.append(_finish_part(model, window, index, part, rows, depth))
        except Exception as failure:
            if not is_survivable(failure):
                raise
            outcomes.append(failure)
    return outcomes


def _finish_part(
    model: LanguageModel, window: WindowResult, index: int, part: WindowPart, rows: slice, depth: int
) -> WindowOutcome:
    slot, reply = part.slot, part.reply
    draws = reply.sampler.verify(window.output.logits[rows], slot.position + 1, part.drafts)
    taken, reason = reply.take(draws)
    accepted = [0] * len(window.segments)
    accepted[index] = len(taken)
    model.commit(window, accepted)
    slot.note_progress()
    committed = slice(rows.start, rows.start + len(taken))
    depth = depth if reason is None else 0
    guess_ahead(slot, reply, window.output.hidden[committed], part.rows[: len(taken)], depth)
    return WindowOutcome(taken, reason)
