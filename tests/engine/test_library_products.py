"""What tests of stages multiply by: a whole model has the same bits as by the definition."""

from contextlib import nullcontext

import pytest
import torch

from strata.models.base import LogitRows, Segment
from strata.native import library
from tests.engine.stages import EVERY_STATE, stage_model
from tests.library_products import multiplied_by_library
from tests.random_text import token_ids_of


@pytest.fixture
def library_products() -> None:
    """None but where the test asks for them."""


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
@pytest.mark.parametrize("family", EVERY_STATE)
def test_a_stage_has_the_bits_of_the_definition(family: str) -> None:
    logits = []
    for multiplied in (nullcontext, multiplied_by_library):
        with multiplied():
            model = stage_model(family, slots=1, context=64)
            state = model.new_state()
            read = model.read([Segment(state, torch.tensor(token_ids_of(5)))], LogitRows.ALL).logits
            window = model.window([Segment(state, torch.tensor([3, 4]))])
            logits.append(torch.cat((read, window.output.logits)))
    assert torch.equal(*logits)
