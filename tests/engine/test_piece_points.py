"""Points of a prompt whose logits are all wanted: it goes through the model in passes of some rows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strata.engine.reader import LOGITS_ROWS, Piece, PromptLogprobs
from strata.engine.steps import Read
from strata.models.base import LogitRows, Output
from strata.models.reading import ReadAtOnce


class ListedSlot:
    """Advances by what it is told to read, and notes where points are."""

    model = SimpleNamespace(reads_by_layers=True)
    drafts = None

    def __init__(self) -> None:
        self.position = 0
        self.points: list[int] = []
        self.marks: list[int | None] = []

    def begin_read(self, rows: torch.Tensor, logit_rows: LogitRows, mark: int | None) -> ReadAtOnce:
        self.marks.append(mark)

        def read() -> Output:
            self.position += len(rows)
            return Output(torch.zeros(len(rows), 8), torch.zeros(len(rows), 0))

        return ReadAtOnce(read)

    def add_point(self) -> None:
        self.points.append(self.position)


@pytest.mark.parametrize(
    ("stop", "point", "points", "marks"),
    [
        (LOGITS_ROWS + 40, LOGITS_ROWS, [LOGITS_ROWS, LOGITS_ROWS + 40], [None, None]),
        (LOGITS_ROWS + 70, LOGITS_ROWS + 64, [LOGITS_ROWS + 70], [None, LOGITS_ROWS + 64]),
    ],
)
def test_a_point_at_the_cut_of_two_passes_is_kept(
    stop: int, point: int, points: list[int], marks: list[int | None]
) -> None:
    prompt = torch.zeros(stop + 1, dtype=torch.int64)  # the reply is not begun here
    slot: Any = ListedSlot()
    reply: Any = SimpleNamespace(prompt=prompt)
    piece = Piece(slot, reply, Read(0, stop, point), PromptLogprobs(prompt, 0), 0)
    while piece.advance() is None:
        pass
    assert (slot.points, slot.marks) == (points, marks)
