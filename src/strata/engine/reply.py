"""A request under way in a slot: how its tokens are chosen, what has come of it, and where it ends.

Knows token ids and limits; runs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.engine.request import TokenRequest
from strata.sampling.draw import Draw
from strata.sampling.sampler import Sampler
from strata.types import FinishReason


@dataclass
class Reply:
    """Made when a request is put into a slot."""

    request: TokenRequest
    sampler: Sampler
    prompt: torch.Tensor  # [rows] int64
    budget: int  # tokens that it may have
    last_token: int = -1  # drawn, and not yet part of the state; none while the prompt is read
    next_drafts: tuple[int, ...] = ()  # behind the last token
    length: int = 0  # tokens drawn
    reason: FinishReason | None = None  # why it has ended

    def drafts(self, most: int) -> tuple[int, ...]:
        """The drafts of the next window: no more than the reply has room for."""
        return self.next_drafts[: max(0, min(most, self.budget - self.length - 1))]

    def take(self, draws: Sequence[Draw]) -> tuple[tuple[Draw, ...], FinishReason | None]:
        """The draws that belong to the reply, which are its own from now on, and why it ends with them if it does."""
        taken, reason = self._until_end(draws)
        self.sampler.commit(draw.token_id for draw in taken)
        self.length += len(taken)
        self.last_token = taken[-1].token_id
        self.reason = FinishReason.STOP if self.sampler.is_finished else reason
        return taken, self.reason

    def _until_end(self, draws: Sequence[Draw]) -> tuple[tuple[Draw, ...], FinishReason | None]:
        for count, draw in enumerate(draws, start=1):
            if draw.token_id in self.request.stop_token_ids:
                return tuple(draws[:count]), FinishReason.STOP
            if self.length + count == self.budget:
                return tuple(draws[:count]), FinishReason.LENGTH
        return tuple(draws), None
