"""The draft layer gives what its description, written out step by step in float64, gives."""

import pytest
import torch

from strata.models.base import DraftRows, LogitRows, Segment
from tests.models.plain_mtp import PlainMtp
from tests.models.tiny_qwen4_exp import tiny_config, tiny_model, tiny_tensors, tiny_text

ROWS = 70  # beyond the indexer's budget and over one border of 64


def text_rows(dtype: torch.dtype, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's hidden rows of a text and the tokens after them."""
    model, text = tiny_model(dtype), tiny_text(rows + 1)
    return model.read([Segment(model.new_state(), text[:-1])], LogitRows.NONE).hidden, text[1:]


def test_teacher_forced_rows_are_the_plain_computation() -> None:
    hidden, following = text_rows(torch.float64)
    head = tiny_model(torch.float64).draft_head
    assert head is not None
    found = head.read(DraftRows(head.new_state(), hidden, following), LogitRows.ALL)
    plain = PlainMtp(tiny_tensors(), tiny_config())
    for row in range(ROWS):
        logits, streams = plain.step(hidden[row], int(following[row]))
        assert (found.logits[row] - logits).abs().max() < 1e-9
        assert (found.hidden[row] - streams).abs().max() < 1e-9


@pytest.mark.parametrize("cuts,limit", [([64], 0.0), ([1, 2, 30, 65], 1e-4)])
def test_rows_may_be_read_in_pieces(cuts: list[int], limit: float) -> None:
    hidden, following = text_rows(torch.float32)
    head = tiny_model().draft_head
    assert head is not None
    whole = head.read(DraftRows(head.new_state(), hidden, following), LogitRows.ALL).logits
    state, start, parts = head.new_state(), 0, []
    for stop in [*cuts, ROWS]:
        parts.append(head.read(DraftRows(state, hidden[start:stop], following[start:stop]), LogitRows.ALL).logits)
        start = stop
    assert state.position == ROWS
    assert (torch.cat(parts) - whole).abs().max() <= limit


@pytest.mark.parametrize("kept", [1, 26, 35, 64])
def test_truncated_rows_leave_no_trace(kept: int) -> None:
    hidden, following = text_rows(torch.float32)
    head = tiny_model().draft_head
    assert head is not None
    used, fresh = head.new_state(), head.new_state()
    head.read(DraftRows(used, hidden[:kept], following[:kept]), LogitRows.NONE)
    head.read(DraftRows(fresh, hidden[:kept], following[:kept]), LogitRows.NONE)
    copy = used.clone()
    head.read(DraftRows(used, hidden[kept:].flip(0), following[kept:].flip(0)), LogitRows.NONE)
    head.truncate(used, kept)
    assert used.position == kept
    expected = head.read(DraftRows(fresh, hidden[kept:], following[kept:]), LogitRows.ALL).logits
    for state in (used, copy):
        assert torch.equal(head.read(DraftRows(state, hidden[kept:], following[kept:]), LogitRows.ALL).logits, expected)
