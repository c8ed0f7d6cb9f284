"""One decode window of one slot: verify drafts, draw tokens, commit what stands, draft again.

Knows how rows, draws and commits belong together; does not know when to stop.

A window's rows are the slot's last token and its drafts. Row i gives the logits from which the token at position
`state.position + i + 1` is drawn, always with that position's own draw: drafts change how many rows a window has, never
which token comes out.

    rows    last   d0     d1     d2        here d0 = t0 and d1 = t1, but d2 is not t2:
    draws   t0     t1     t2     -         t0 t1 t2 come out; the rows last, d0, d1 are committed
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.engine.slot import Slot
from strata.models.base import Output
from strata.sampling.draw import Draw
from strata.sampling.sampler import Sampler


@dataclass(frozen=True)
class WindowOutcome:
    """The tokens that came out, in order, and the drafts that stand behind the last of them."""

    draws: tuple[Draw, ...]
    next_drafts: tuple[int, ...]

    @property
    def accepted_drafts(self) -> int:
        """Drafts of this window that were what the model itself gave."""
        return len(self.draws) - 1


def close_reading(slot: Slot, output: Output, last_chunk: torch.Tensor, sampler: Sampler, depth: int) -> WindowOutcome:
    """Draw the first token of a reply from the last row of the prompt, and draft behind it."""
    first = sampler.sample(output.logits[-1], slot.state.position)
    return _finish(slot, sampler, [first], output.hidden, last_chunk, depth)


def run_window(slot: Slot, last_token: int, drafts: Sequence[int], sampler: Sampler, depth: int) -> WindowOutcome:
    """One window: the slot's state moves on by the rows whose tokens stand."""
    rows = torch.tensor([last_token, *drafts])
    window = slot.window(rows)
    draws = sampler.verify(window.output.logits, slot.state.position + 1, drafts)
    slot.commit(window, len(draws))
    return _finish(slot, sampler, draws, window.output.hidden[: len(draws)], rows[: len(draws)], depth)


def _finish(
    slot: Slot, sampler: Sampler, draws: Sequence[Draw], hidden: torch.Tensor, token_ids: torch.Tensor, depth: int
) -> WindowOutcome:
    """Tell sampler and draft layer what was committed; guess `depth` tokens behind the last draw."""
    sampler.commit(draw.token_id for draw in draws)
    if slot.drafts is None:
        return WindowOutcome(tuple(draws), ())
    guesses = slot.drafts.draft(hidden, token_ids, draws[-1].token_id, depth)
    return WindowOutcome(tuple(draws), tuple(guesses))
