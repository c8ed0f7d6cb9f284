"""Reads a piece of a prompt into a slot; with the last row, draws the first token of the reply.

Knows rows and what is done with their logits; where a prompt is cut is decided by the caller, at multiples of 64, so
that the cuts change no bit.
"""

from dataclasses import dataclass

import torch

from strata.engine.reply import Reply
from strata.engine.slot import Slot
from strata.models.base import LogitRows, Output
from strata.models.blocks.rows import TILE_ROWS
from strata.sampling.draw import Draw
from strata.sampling.logprobs import token_logprob
from strata.types import FinishReason


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


def read_rows(slot: Slot, reply: Reply, stop: int, logprobs: PromptLogprobs | None, depth: int) -> ReadOutcome:
    """Read the prompt up to row `stop`. `logprobs` takes the rows' logits, tile by tile: all at once are too large."""
    step = TILE_ROWS if logprobs is not None else stop
    output, chunk = None, reply.prompt[:0]
    for start in range(slot.position, stop, step):
        if output is not None and slot.drafts is not None:
            slot.drafts.follow(output.hidden, chunk)
        chunk = reply.prompt[start : min(stop, start + step)]
        output = slot.read(chunk, _logit_rows(start + len(chunk) == len(reply.prompt), logprobs))
        if logprobs is not None:
            logprobs.take(output.logits)
    assert output is not None, "there is a row to read"
    if stop == len(reply.prompt):
        return _first_token(slot, reply, output, chunk, depth)
    if slot.drafts is not None:
        slot.drafts.follow(output.hidden, chunk)
    slot.add_point()
    return ReadOutcome((), None)


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
