"""Reads a piece of a prompt into a slot; with the last row, draws the first token of the reply.

Knows rows and what is done with their logits; where a prompt is cut is decided by the caller, at multiples of 64, so
that the cuts change no bit.
"""

from dataclasses import dataclass

import torch

from strata.engine.reply import Reply
from strata.engine.slot import Slot
from strata.engine.steps import Read
from strata.models.base import LogitRows, Output, Reading
from strata.models.blocks.rows import TILE_ROWS
from strata.sampling.draw import Draw
from strata.sampling.logprobs import token_logprob
from strata.types import FinishReason

LOGITS_ROWS = 512  # of a model that reads by layers, whose logits are there at once


@dataclass(frozen=True)
class ReadOutcome:
    """The first draw if the prompt's last row was read, and why the reply ends with it if it does."""

    draws: tuple[Draw, ...]
    reason: FinishReason | None


class PromptLogprobs:
    """Log-probabilities of a prompt's tokens, row by row while it is read."""

    def __init__(self, prompt: torch.Tensor, top: int) -> None:
        self._prompt = prompt
        self._top = top
        self.draws = [Draw(int(prompt[0]))]  # nothing stands before the first token

    def take(self, logits: torch.Tensor) -> None:
        """logits [rows, vocabulary] of the next rows; each tells of the token behind it."""
        following = self._prompt[len(self.draws) : len(self.draws) + logits.shape[0]].tolist()
        for row, token_id in zip(logits, following, strict=False):  # behind the last row stands no prompt
            self.draws.append(Draw(token_id, *token_logprob(row.to(torch.float32), token_id, self._top)))


class Piece:
    """Rows of a prompt on their way into a slot, step by step: up to a row, and perhaps the reply's first token."""

    def __init__(self, slot: Slot, reply: Reply, step: Read, logprobs: PromptLogprobs | None, depth: int) -> None:
        """`logprobs` takes the rows' logits, some rows after others: all at once are too large."""
        self._slot, self._reply, self._logprobs, self._depth = slot, reply, logprobs, depth
        self._stop, self._point = step.stop, step.point
        by_layers = slot.model.reads_by_layers
        self._most = step.stop if logprobs is None else LOGITS_ROWS if by_layers else TILE_ROWS
        self._rows = reply.prompt[:0]  # of the reading under way
        self._reading: Reading | None = None

    def advance(self) -> ReadOutcome | None:
        """The next step; what came of it behind the last one. `cancel` follows what an error leaves."""
        if self._reading is None:
            self._reading = self._begin()
        if not self._reading.advance():
            return None
        reading, self._reading = self._reading, None
        try:
            output = reading.finish()
        finally:
            reading.cancel()
        if self._logprobs is not None:
            self._logprobs.take(output.logits)
        if reading.checkpoint is not None:
            self._slot.add_point_at(reading.checkpoint)
        if self._slot.position < self._stop:
            self._follow(output)
            if self._slot.position == self._point:  # the cut of a pass: no mark inside one
                self._slot.add_point()
            return None
        if self._stop == len(self._reply.prompt):
            return _first_token(self._slot, self._reply, output, self._rows, self._depth)
        self._follow(output)
        self._slot.add_point()
        return ReadOutcome((), None)

    def cancel(self) -> None:
        """Give up what is under way; see `Slot.abandon_read`."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            self._slot.abandon_read()

    def _begin(self) -> Reading:
        start, end = self._slot.position, len(self._reply.prompt)
        stop = min(self._stop, start + self._most)
        self._rows = self._reply.prompt[start:stop]
        mark = self._point if self._point is not None and start < self._point < stop else None
        return self._slot.begin_read(self._rows, _logit_rows(stop == end, self._logprobs), mark)

    def _follow(self, output: Output) -> None:
        if self._slot.drafts is not None:
            self._slot.drafts.follow(output.hidden, self._rows)


def _first_token(slot: Slot, reply: Reply, output: Output, chunk: torch.Tensor, depth: int) -> ReadOutcome:
    slot.begin_reply()
    draws, reason = reply.take([reply.sampler.sample(output.logits[-1], slot.position)])
    guess_ahead(slot, reply, output.hidden, chunk, depth if reason is None else 0)
    return ReadOutcome(draws, reason)


def guess_ahead(slot: Slot, reply: Reply, hidden: torch.Tensor, token_ids: torch.Tensor, depth: int) -> None:
    """Tell the draft layer of rows that became state, and guess `depth` tokens behind the reply's last one."""
    if slot.drafts is None:
        return
    if depth == 0:
        slot.drafts.follow(hidden, token_ids)
        reply.next_drafts = ()
    else:
        reply.next_drafts = tuple(slot.drafts.draft(hidden, token_ids, reply.last_token, depth))


def _logit_rows(is_last: bool, logprobs: PromptLogprobs | None) -> LogitRows:
    if logprobs is not None:
        return LogitRows.ALL
    return LogitRows.LAST if is_last else LogitRows.NONE
