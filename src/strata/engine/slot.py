"""One conversation's place in the engine: its state in the model and in the draft layer, side by side.

Knows the contracts of model and draft layer; decides nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch

from strata.models.base import LanguageModel, LogitRows, Output, Segment, WindowResult
from strata.speculation.mtp import SlotDrafts


@dataclass
class Slot:
    """State that moves forward with every committed row. Made by `open_slot`."""

    model: LanguageModel
    state: Any  # the family's SlotState
    drafts: SlotDrafts | None  # None: nothing is drafted

    def read(self, token_ids: torch.Tensor, logit_rows: LogitRows) -> Output:
        """Read rows of a prompt into the state; the draft layer is told by the caller, who may know the next token."""
        return self.model.read([Segment(self.state, token_ids)], logit_rows)

    def window(self, token_ids: torch.Tensor) -> WindowResult:
        """Compute the rows of a window; the state stays as it is."""
        return self.model.window([Segment(self.state, token_ids)])

    def commit(self, window: WindowResult, accepted_rows: int) -> None:
        """Make the window's first rows state."""
        self.model.commit(window, [accepted_rows])


def open_slot(model: LanguageModel, *, drafting: bool) -> Slot:
    """An empty slot; it drafts if that is wanted and the model has a draft layer."""
    head = model.draft_head if drafting else None
    return Slot(model, model.new_state(), SlotDrafts(head) if head is not None else None)
