"""Points of a piece of a prompt: inside a pass where the model keeps marks, at its cuts, and at the piece's end."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strata.engine.reader import LOGITS_ROWS, Piece, PromptLogprobs
from strata.engine.steps import Read
from strata.models.base import LogitRows, Output


class ListedReading:
    """One step, which gives logits of every row, and a checkpoint for every mark."""

    def __init__(self, slot: "ListedSlot", count: int, marks: Sequence[int]) -> None:
        self.checkpoints = tuple(marks)
        self._slot, self._count = slot, count

    def advance(self) -> bool:
        return True

    def finish(self) -> Output:
        self._slot.position += self._count
        return Output(torch.zeros(self._count, 8), torch.zeros(self._count, 0))

    def cancel(self) -> None:
        pass


class ListedSlot:
    """Advances by what it is told to read, and notes where points are: (rows, whether it is only passing)."""

    drafts = None

    def __init__(self, *, keeps_marks: bool) -> None:
        self.model = SimpleNamespace(chunk_rows=None, keeps_marks=keeps_marks, vocabulary_size=8)
        self.position = 0
        self.points: list[tuple[int, bool]] = []
        self.passes: list[int] = []

    def begin_read(self, rows: torch.Tensor, logit_rows: LogitRows, marks: Sequence[int]) -> ListedReading:
        self.passes.append(len(rows))
        return ListedReading(self, len(rows), marks)

    def add_point_at(self, state: int) -> None:
        self.points.append((state, False))

    def add_point(self, *, is_passing: bool = False) -> None:
        self.points.append((self.position, is_passing))


def read(slot: ListedSlot, stop: int, points: tuple[int, ...], *, has_logprobs: bool = False) -> ListedSlot:
    """A piece of a longer prompt: the reply is not begun here."""
    prompt = torch.zeros(stop + 1, dtype=torch.int64)
    reply: Any = SimpleNamespace(prompt=prompt)
    logprobs = PromptLogprobs(prompt, 0) if has_logprobs else None
    made: Any = slot
    piece = Piece(made, reply, Read(0, stop, points), logprobs, 0)
    while piece.advance() is None:
        pass
    return slot


@pytest.mark.parametrize("keeps_marks", [False, True])
def test_every_wanted_point_is_taken_and_the_end_only_passes(keeps_marks: bool) -> None:
    slot = read(ListedSlot(keeps_marks=keeps_marks), 512, (64, 256))
    assert slot.points == [(64, False), (256, False), (512, True)]
    assert slot.passes == ([512] if keeps_marks else [64, 192, 256])


def test_an_end_that_is_wanted_lasts() -> None:
    assert read(ListedSlot(keeps_marks=True), 512, (64, 512)).points == [(64, False), (512, False)]


@pytest.mark.parametrize(
    ("stop", "points"), [(LOGITS_ROWS + 40, (LOGITS_ROWS,)), (LOGITS_ROWS + 70, (64, LOGITS_ROWS, LOGITS_ROWS + 64))]
)
def test_a_point_at_the_cut_of_two_passes_is_kept(stop: int, points: tuple[int, ...]) -> None:
    """Logits of all rows are wanted, so that it goes through the model in passes of some rows."""
    slot = read(ListedSlot(keeps_marks=True), stop, points, has_logprobs=True)
    assert slot.points == [*((point, False) for point in points), (stop, True)]
    assert slot.passes == [LOGITS_ROWS, stop - LOGITS_ROWS]
