"""Drafts are the plain computation's greedy choices, and drafting leaves only the text's rows behind."""

import pytest
import torch

from strata.models.base import DraftRows, LogitRows, Segment
from strata.speculation.mtp import SlotDrafts, draft_greedy
from tests.models.plain_mtp import PlainMtp
from tests.models.tiny_qwen4_exp import tiny_config, tiny_model, tiny_tensors, tiny_text


def plain_drafts(hidden: torch.Tensor, following: torch.Tensor, depth: int) -> list[int]:
    """Teacher-forced rows, then the layer's own streams fed back with its own choices."""
    plain = PlainMtp(tiny_tensors(), tiny_config())
    for row, token in zip(hidden, following, strict=True):
        logits, streams = plain.step(row, int(token))
    drafts = [int(logits.argmax())]
    while len(drafts) < depth:
        logits, streams = plain.step(streams, drafts[-1])
        drafts.append(int(logits.argmax()))
    return drafts


@pytest.mark.parametrize("rows", [1, 24, 40])
def test_drafts_are_the_plain_computations_choices(rows: int) -> None:
    model = tiny_model(torch.float64)
    head, text = model.draft_head, tiny_text(rows + 1, rows)
    assert head is not None
    hidden = model.read([Segment(model.new_state(), text[:-1])], LogitRows.NONE).hidden
    state = head.new_state()
    drafts = draft_greedy(head, DraftRows(state, hidden, text[1:]), 4)
    assert drafts == plain_drafts(hidden, text[1:], 4)
    assert state.position == rows


def test_no_depth_no_drafts() -> None:
    model = tiny_model()
    head, text = model.draft_head, tiny_text(6)
    assert head is not None
    hidden = model.read([Segment(model.new_state(), text[:-1])], LogitRows.NONE).hidden
    state = head.new_state()
    assert draft_greedy(head, DraftRows(state, hidden, text[1:]), 0) == []
    assert state.position == 5


def test_a_slot_drafts_as_from_its_whole_text() -> None:
    """A prompt in two chunks, a draft, committed rows, another draft: the same as one teacher-forced read."""
    model = tiny_model(torch.float64)
    head, text = model.draft_head, tiny_text(50, 3)
    assert head is not None
    hidden = model.read([Segment(model.new_state(), text)], LogitRows.NONE).hidden
    slot = SlotDrafts(head)
    slot.follow(hidden[:20], text[:20])
    slot.follow(hidden[20:21], text[20:21])
    slot.follow(hidden[21:40], text[21:40])
    no_rows = hidden[:0]
    copy = slot.fork(slot.checkpoint())
    for each in (slot, copy):
        assert each.draft(no_rows, text[:0], int(text[40]), 3) == plain_drafts(hidden[:40], text[1:41], 3)
        assert each.draft(hidden[40:43], text[40:43], int(text[43]), 3) == plain_drafts(hidden[:43], text[1:44], 3)
    assert slot.bytes_used() == copy.bytes_used() > 0
