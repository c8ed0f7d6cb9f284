"""Drafts from a model's own draft layer, one slot at a time. Knows the contract of a draft head, no family.

The head follows the text: its row i is made of the model's hidden row at i and the token at i + 1. To draft, its own
hidden row stands for the model's at the next position; those rows are forgotten afterwards, because the text's own rows
replace them once the window is committed.

    head's rows   0 .. position           made of the text: kept
                  position .. + depth-1   made of drafts: forgotten when `draft` returns
"""

from typing import Any

import torch

from strata.models.base import DraftHead, DraftRows, LogitRows
from strata.state.checkpoints import fork, go_back, take_checkpoint


def draft_greedy(head: DraftHead, rows: DraftRows, depth: int) -> list[int]:
    """Read the text's rows, then guess `depth` tokens after the last of `rows.next_token_ids`, best first choice only.

    The head's state keeps the text's rows only.
    """
    output = head.read(rows, LogitRows.LAST if depth else LogitRows.NONE)
    kept = rows.state.position
    drafts: list[int] = []
    while len(drafts) < depth:
        drafts.append(int(output.logits[-1].argmax()))
        if len(drafts) < depth:
            output = head.read(DraftRows(rows.state, output.hidden[-1:], torch.tensor(drafts[-1:])))
    head.truncate(rows.state, kept)
    return drafts


class SlotDrafts:
    """One slot's drafting: keeps the last hidden row until the token after it is known."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head
        self._state = head.new_state()
        self._waiting: torch.Tensor | None = None  # [1, width]: the row whose next token is not known yet

    def bytes_used(self) -> int:
        """Bytes of the draft layer's state."""
        return int(self._state.bytes_used())

    def checkpoint(self) -> Any:
        """For `go_back` and `fork`; belongs beside a checkpoint of the model's state."""
        return take_checkpoint(self._state), self._waiting

    def go_back(self, saved: Any) -> None:
        """Forget what came after the checkpoint."""
        state, self._waiting = saved
        self._state = go_back(self._state, state)

    def fork(self, saved: Any) -> "SlotDrafts":
        """Another slot's drafting, as this one was at the checkpoint."""
        other = SlotDrafts(self._head)
        state, other._waiting = saved
        other._state = fork(self._state, state)
        return other

    def follow(self, hidden: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Rows became part of the text (a prompt's chunk, or committed rows): hidden [rows, width], their token ids."""
        rows, following = self._pair(hidden, token_ids)
        if following.shape[0]:
            self._head.read(DraftRows(self._state, rows[:-1], following), LogitRows.NONE)
        self._waiting = rows[-1:].clone()

    def draft(self, hidden: torch.Tensor, token_ids: torch.Tensor, next_token_id: int, depth: int) -> list[int]:
        """As `follow` (there may be no new rows), then `depth` drafts of the tokens after `next_token_id`."""
        rows, following = self._pair(hidden, token_ids)
        if rows.shape[0] == 0:
            raise ValueError("there is no new row to draft from")
        following = torch.cat((following, torch.tensor([next_token_id])))
        self._waiting = None
        return draft_greedy(self._head, DraftRows(self._state, rows, following), depth)

    def _pair(self, hidden: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows in order, and the known tokens after them: one fewer than the rows."""
        if self._waiting is None:
            return hidden, token_ids[1:]
        return torch.cat((self._waiting, hidden)), token_ids
