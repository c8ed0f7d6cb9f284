"""Reads a piece of a prompt into a slot; with the last row, draws the first token of the reply.

Knows rows and what is done with their logits and their hidden rows; where a prompt is cut is decided by the caller, at
multiples of 64, so that the cuts change no bit.
"""

from dataclasses import dataclass

import torch

from strata.engine.reply import Reply
from strata.engine.slot import Slot
from strata.engine.steps import Read
from strata.models.base import LanguageModel, LogitRows, Output, Reading
from strata.models.blocks.rows import TILE_ROWS
from strata.sampling.draw import Draw
from strata.sampling.logprobs import token_logprob
from strata.types import FinishReason

LOGITS_ROWS, LOGITS_BYTES = 512, 320 << 20  # of one read whose logits are all wanted, at most: they are there at once


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
        """There is room for the step's points. `logprobs` takes the rows' logits, some rows after others: all at once
        are too large.
        """
        self._slot, self._reply, self._logprobs, self._depth = slot, reply, logprobs, depth
        self._start, self._stop, self._points = slot.position, step.stop, step.points
        self._most = step.stop if logprobs is None else _rows_with_logits_of(slot.model)
        self._rows = reply.prompt[:0]  # of the reading under way
        self._noted = 0  # of its checkpoints
        self._reading: Reading | None = None
        self._output: Output | None = None  # of rows that the draft layer has not been told of

    @property
    def read_rows(self) -> int | None:
        """Of the prompt so far, if some of this piece are part of the slot's state; None if none are."""
        return self._slot.position if self._slot.position > self._start else None

    def advance(self) -> ReadOutcome | None:
        """The next step; what came of it behind the last one. `cancel` follows what an error leaves.

        A step is one of the model's, or the draft layer is told of the rows that the model has read.
        """
        if self._output is None:
            self._output = self._read_on()
            if self._output is None or self._slot.drafts is not None:
                return None
        output, self._output = self._output, None
        if self._slot.drafts is not None:
            self._slot.drafts.follow(output.hidden, self._rows)
        return self._arrive(output)

    def cancel(self) -> bool:
        """Give up what is under way; whether the slot's state is half moved and wants `Slot.abandon_read`."""
        reading, output = self._reading, self._output
        self._reading = self._output = None
        if reading is not None:
            reading.cancel()
        return reading is not None or output is not None

    def _read_on(self) -> Output | None:
        """The model's next step; what it gave behind its last one for these rows."""
        if self._reading is None:
            self._reading, self._noted = self._begin(), 0
        if not self._reading.advance():
            self._note_points(self._reading)
            return None
        reading, self._reading = self._reading, None
        try:
            output = reading.finish()
        finally:
            reading.cancel()
        if self._logprobs is not None:
            self._logprobs.take(output.logits)
        self._note_points(reading)
        return output

    def _note_points(self, reading: Reading) -> None:
        """Keep the places that the read has passed since."""
        for state in reading.checkpoints[self._noted :]:
            self._slot.add_point_at(state)
        self._noted = len(reading.checkpoints)

    def _arrive(self, output: Output) -> ReadOutcome | None:
        """Rows have become part of the slot's state."""
        if self._slot.position == len(self._reply.prompt):
            return _first_token(self._slot, self._reply, output, self._depth)
        is_through = self._slot.position == self._stop
        if is_through or self._slot.position in self._points:
            self._slot.add_point(is_passing=self._slot.position not in self._points)
        return ReadOutcome((), None) if is_through else None

    def _begin(self) -> Reading:
        start, end = self._slot.position, len(self._reply.prompt)
        stop = min(self._stop, start + self._most)
        marks = [point for point in self._points if start < point < stop]
        if marks and not self._slot.model.keeps_marks:
            stop, marks = marks[0], []
        self._rows = self._reply.prompt[start:stop]
        return self._slot.begin_read(self._rows, _logit_rows(stop == end, self._logprobs), marks)


def _rows_with_logits_of(model: LanguageModel) -> int:
    rows = rows_with_logits(model.vocabulary_size)
    return min(rows, model.chunk_rows or rows)


def rows_with_logits(vocabulary_size: int) -> int:
    """The most rows of one read whose logits are all wanted: a multiple of 64."""
    fitting = LOGITS_BYTES // (4 * vocabulary_size) // TILE_ROWS * TILE_ROWS
    return max(TILE_ROWS, min(LOGITS_ROWS, fitting))


def _first_token(slot: Slot, reply: Reply, output: Output, depth: int) -> ReadOutcome:
    """Draw it, and guess on; the draft layer knows the prompt."""
    slot.begin_reply()
    draws, reason = reply.take([reply.sampler.sample(output.logits[-1], slot.position)])
    guess_ahead(slot, reply, output.hidden[:0], reply.prompt[:0], depth if reason is None else 0)
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
