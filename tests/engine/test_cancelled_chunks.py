"""A thousand chunks that are given up in the middle leave nothing: no memory, no tile, and a slot as it was."""

import pytest
import torch

from strata.engine.read_pace import ReadSteps
from strata.models.base import Segment
from strata.native import library
from tests.engine.cancelled_chunks import cancel_reads, host_bytes
from tests.engine.chunked_stages import chunked_in_tiers
from tests.engine.tiered_stages import Tiering
from tests.random_text import text_of

MOST_GROWTH = 16 << 20  # of main memory, by a thousand reads behind the first hundred


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_a_thousand_cancelled_reads_leave_nothing() -> None:
    text, steps = text_of(70), ReadSteps(by_tiles=True)
    with chunked_in_tiers("qwen3_moe", "none", Tiering(0.25), context=128, steps=steps) as (model, _):
        state = model.new_state()
        whole = model.read([Segment(state, text)]).logits
        model.release(state)
        cancel_reads(model, text, 100)
        before = host_bytes()
        cancel_reads(model, text, 1000)
        grown = host_bytes() - before
        print(f"main memory: {before:,} bytes before, {grown:,} more behind 1,000 cancelled reads")
        assert grown < MOST_GROWTH
        state = model.new_state()
        assert torch.equal(model.read([Segment(state, text)]).logits, whole)
        tiers = model.stage.stages[0].model.tiers
        assert tiers is not None and not tiers.seats_are_held
