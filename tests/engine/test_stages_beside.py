"""Stages beside each other: one set of slots, windows of its groups on buffers of their own."""

import pytest
import torch

from strata.engine.stage import RowsPart, Stage, StageSizes
from strata.engine.stage_model import GroupStage, StageModel
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from tests.engine.stages import EVERY_STATE, described
from tests.random_text import token_ids_of

LENGTHS = (5, 9, 3, 12)
WINDOWS = 4
OPTIONS = (ChoiceOptions(), ChoiceOptions(inverse_temperature=1.1, seed=11, top_p=0.9, top_k=40))
BUCKETS = (1, 2, 4)


def begin(stage: Stage) -> None:
    """A reply in every slot, behind a text of its own."""
    for slot, length in enumerate(LENGTHS):
        text = token_ids_of(length, slot)
        for position, token in enumerate(text[:-1]):
            stage.set_rows(1, [RowsPart(slot, position, [token])])
            stage.read(1)
        stage.set_reply(slot, ReplyStart(length - 1, text[-1], 50, (), OPTIONS[slot % 2]))


def window(stage: Stage, serial: int, slots: tuple[int, ...]) -> None:
    """One window of these slots, launched."""
    stage.set_plan(serial, [PlannedPart(slot) for slot in slots])
    stage.run(stage.window_variant(slots), stage.bucket_for(len(slots)))


def tokens_of(stage: Stage, serial: int, slots: tuple[int, ...]) -> dict[int, list[int]]:
    """What the stage's last window chose."""
    results = stage.results
    found, parts = read_results(results.words.tolist(), results.segments, results.most_drafts)
    assert found == serial
    return {slot: list(part.tokens) for slot, part in zip(slots, parts, strict=False)}


@pytest.mark.parametrize("family", EVERY_STATE)
def test_windows_of_two_groups_are_those_of_one(family: str) -> None:
    """Slots of both groups at once, results of one read behind the launch of the other."""
    _, model = described(family)
    sizes = StageSizes(len(LENGTHS), 64)
    alone, first = Stage(model, sizes, BUCKETS), Stage(model, sizes, BUCKETS)
    second = Stage(model, sizes, BUCKETS, beside=first)
    begin(alone)
    begin(first)
    groups = ((first, (0, 3)), (second, (2, 1)))
    for serial in range(1, WINDOWS + 1):
        for stage, slots in groups:
            window(stage, serial, slots)
        window(alone, serial, (0, 1, 2, 3))
        found = {slot: token for stage, slots in groups for slot, token in tokens_of(stage, serial, slots).items()}
        assert found == tokens_of(alone, serial, (0, 1, 2, 3))
        assert all(len(tokens) == 1 for tokens in found.values())
    for wanted, tensor in zip(alone.state.tensors, first.state.tensors, strict=True):
        assert torch.equal(wanted, tensor)


def test_stages_beside_each_other_share_slots_and_not_buffers() -> None:
    model, description = described("qwen4_exp")
    first = Stage(description, StageSizes(2, 64), (1,))
    second = Stage(description, StageSizes(2, 64), (1,), beside=first)
    assert (second.state, second.variables, second.rotation) == (first.state, first.variables, first.rotation)
    assert second.plan.words.data_ptr() != first.plan.words.data_ptr()
    assert second.results.words.data_ptr() != first.results.words.data_ptr()
    assert second.logits(1).data_ptr() != first.logits(1).data_ptr()
    second.set_reply(1, ReplyStart(0, 1, 9, (), OPTIONS[1]))
    assert first.window_variant([1]) == second.window_variant([1]) != first.window_variant([0])
    served = StageModel(first, first.run, model.config, 0, other_groups=[GroupStage(second, second.run)])
    assert [group.stage for group in served.groups] == [first, second]
    assert served.stage is first


def test_a_stage_of_other_sizes_is_not_beside() -> None:
    _, description = described("qwen4_exp")
    first = Stage(description, StageSizes(2, 64), (1,))
    with pytest.raises(ValueError, match=r"slots=3.*beside one of.*slots=2"):
        Stage(description, StageSizes(3, 64), (1,), beside=first)


def test_slots_that_share_a_pool_of_cells_have_one_group() -> None:
    _, description = described("qwen4_exp")
    sizes = StageSizes(2, 64, kv_resident=64)
    first = Stage(description, sizes, (1,))
    with pytest.raises(ValueError, match=r"kv_resident 64\) have one group"):
        Stage(description, sizes, (1,), beside=first)
