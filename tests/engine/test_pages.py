"""Keys and values in main memory with a pool of blocks beside the windows: the bits of a stage that holds all."""

from typing import Any

import pytest
import torch

from strata.engine.stage import Stage, StageSizes
from strata.models.base import LogitRows, Segment
from strata.quant.cell_codes import CellKind
from tests.engine.paged_stages import CONTEXT, LEAST, Story, assert_consistent, model_of
from tests.engine.served import Served, ask
from tests.engine.stages import described, stage_engine
from tests.random_text import text_of, token_ids_of


@pytest.mark.parametrize(("resident", "kind"), [(LEAST, CellKind.BF16), (60, CellKind.K8V4)])
def test_windows_and_reads_are_those_of_cells_on_the_device(resident: int, kind: CellKind) -> None:
    found = Story(model_of(resident, kind))
    wanted = Story(model_of(0, kind))
    for one, other in zip(found.run(), wanted.run(), strict=True):
        assert torch.equal(one, other)
    assert_consistent(found.model)
    counted = found.model.pages_counted
    assert 0 < counted["brought"] < counted["asked"]
    assert wanted.model.pages_counted == {}


def test_prompts_in_windows_pass_in_as_many_rows_as_the_pool_holds() -> None:
    few, many = model_of(LEAST, slots=2, in_chunks=False), model_of(0, slots=2, in_chunks=False)
    assert (few.most_window_rows, many.most_window_rows) == (2, 32)
    text = text_of(34)
    found, wanted = (model.read([Segment(model.new_state(), text)], LogitRows.ALL).logits for model in (few, many))
    assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="3 rows in 1 parts do not fit 2 rows"):
        few.window([Segment(few.new_state(), text[:3])])


def test_replies_of_an_engine_are_the_same_with_slots_that_are_shared_and_taken_over() -> None:
    """A prompt's beginning is forked from a busy slot, a turn goes on, tokens are taken back by the host."""

    def replies(resident: int) -> tuple[list[list[int]], Any]:
        model = model_of(resident, slots=2)
        served = Served(stage_engine(model, is_ahead=True), 2)
        begin = token_ids_of(64, 1)
        served.submit(0, ask([*begin, 3, 4], 12))
        served.submit(1, ask([*begin, 9, 2, 7], 9, temperature=1.0, seed=4))
        served.finish()
        turn = served.ask(ask([*begin, 3, 4, *served.replies[0], 8], 3))
        back = served.ask(ask([*begin, 3, 4, *served.replies[0][:5], 5, 5], 3))
        return [served.replies[0], served.replies[1], turn, back], model

    found, model = replies(LEAST + 10)
    assert found == replies(0)[0]
    assert_consistent(model)


def test_what_a_stage_cannot_do_is_said() -> None:
    with pytest.raises(ValueError, match="with 16 resident cells a slot only 1 rows fit a window"):
        model_of(16, slots=2)
    description = described("llama")[1]
    with pytest.raises(ValueError, match="only attention with an indexer reads few cells"):
        Stage(description, StageSizes(1, CONTEXT, kv_resident=LEAST))
