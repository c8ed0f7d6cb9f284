"""A stage as loaded reads prompts in chunks that its plan counts, from seats and through the ring; on CPU tensors."""

from dataclasses import replace

import pytest
import torch

from strata.engine.chunk_loading import warm_up_chunks
from strata.engine.device_needs import plan_for
from strata.engine.memory_plan import Budget, Budgets, MemoryPlan, Place
from strata.engine.stage_loading import Card, LoadedStage, ModelFiles, load_stage
from strata.engine.tier_loading import TierWishes
from strata.errors import EngineError, WeightFileError
from strata.experts import streaming
from strata.experts.feed import ResidentExperts
from strata.experts.streaming import StreamedExperts
from strata.models.base import Segment
from strata.native import library
from strata.settings import EngineSettings
from strata.weights.opening import open_model
from tests.engine.chunked_stages import chunked_model
from tests.engine.filed_stages import filed_plan, filed_stage
from tests.gpu.tiny_models import tiny_model
from tests.random_text import text_of
from tests.weights.gguf_models import gguf

GIB = 1 << 30
BUDGETS = Budgets("a card", Budget(8 * GIB, 8 * GIB), Budget(8 * GIB, 8 * GIB))
CPU = Card(torch.device("cpu"), lambda: 8 * GIB, lambda: None)
needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


def planned(name: str, share: float | None = None, **settings: object) -> MemoryPlan:
    """Beside seats for a share of the experts; None: beside all of them."""
    source = tiny_model(name, "code8").source
    asked = EngineSettings(slots=1, context=300, **settings)  # type: ignore[arg-type]
    whole = plan_for(source, asked, BUDGETS)
    if share is None:
        return whole
    return plan_for(source, replace(asked, cache_gib=share * whole.request.routed_bytes / GIB), BUDGETS)


def loaded(name: str, plan: MemoryPlan) -> LoadedStage:
    tiny = tiny_model(name, "code8")
    files = ModelFiles(tiny.family, tiny.config, tiny.source, tiny.names)
    return load_stage(files, CPU, plan, wishes=TierWishes(threads=1))


def logits_of(found: LoadedStage) -> torch.Tensor:
    return found.model.read([Segment(found.model.new_state(), text_of(90))]).logits


@needs_library
def test_chunks_of_a_loaded_stage_are_as_long_as_planned_and_give_the_same_in_tiers() -> None:
    plan, tiered = planned("qwen3_moe", chunk_rows=128), planned("qwen3_moe", 0.4, chunk_rows=128)
    names = {part.name: part.size for part in tiered.parts if part.place is Place.CARD}
    assert plan.seats is None and tiered.seats is not None
    assert plan.request.chunk_rows == 128
    assert names["experts on their way"] == tiered.request.ring_bytes > 0
    assert "experts on their way" not in {part.name for part in plan.parts}
    whole, found = loaded("qwen3_moe", plan), loaded("qwen3_moe", tiered)
    for each, feed in ((whole, ResidentExperts), (found, StreamedExperts)):
        assert each.model.chunks is not None and isinstance(each.model.chunks.feed, feed)
        assert (each.model.chunk_rows, each.model.keeps_marks, each.model.reads_as_windows) == (128, True, False)
        assert each.model.chunks.room.total_bytes <= names["prompts in chunks"]
    assert torch.equal(logits_of(whole), logits_of(found))


def test_a_chunk_is_no_longer_than_a_slot_and_windows_need_none() -> None:
    plan = planned("llama")
    assert plan.request.chunk_rows == 512  # not 8,192: a slot of 512 rows was planned
    assert loaded("llama", plan).model.chunk_rows == 512
    windows = planned("llama", gpu_reads="windows")
    assert (windows.request.chunk_rows, windows.request.ring_bytes) == (0, 0)
    assert "prompts in chunks" not in {part.name for part in windows.parts}
    assert loaded("llama", windows).model.reads_as_windows


def test_who_cannot_be_read_in_chunks_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.engine.part_loading.chunk_problem", lambda _: "the moon is full")
    found = loaded("llama", planned("llama"))
    assert found.model.reads_as_windows
    assert "prompts are read as windows of 32 rows, which is slow, because the moon is full" in found.notices


def test_the_torch_road_compiles_nothing() -> None:
    model = chunked_model("llama")
    assert model.chunks is not None
    warm_up_chunks(model.chunks)
    assert all(piece.count_nonzero() == 0 for piece in model.chunks.room._held.values())


@needs_library
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen4_exp"])
def test_experts_in_files_change_no_bit_of_a_prompt(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "TILE_EXPERTS", 2)
    path = gguf(family, "Q8_0")
    whole = filed_stage(path, plan_for(open_model(path), EngineSettings(slots=2, context=256), BUDGETS))
    plan = filed_plan(path, 0.3, 0.6, gpu_reads="chunks")
    names = [part.name for part in plan.parts if part.place is Place.RAM]
    assert plan.request.is_filed and "experts on their way" in names
    found = filed_stage(path, plan)
    assert found.tiers is not None and not found.tiers.store.may_move.all()
    assert whole.model.keeps_marks and found.model.keeps_marks
    assert torch.equal(logits_of(found), logits_of(whole))
    short = [each.model.read([Segment(each.model.new_state(), text_of(3))]).logits for each in (whole, found)]
    assert torch.equal(*short)


@needs_library
def test_experts_that_files_do_not_give_end_the_read_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "TILE_EXPERTS", 2)
    path = gguf("qwen3_moe", "Q8_0")
    found = filed_stage(path, filed_plan(path, 0.3, 0.6, gpu_reads="chunks"))
    before = logits_of(found)
    assert found.tiers is not None and found.tiers.store.reads is not None

    def fail(*_: object) -> None:
        raise WeightFileError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(found.tiers.store.reads, "fill", fail)
        for rows in (90, 3):  # everything is sent ahead; or what the routing asks for
            state = found.model.new_state()
            with pytest.raises(EngineError, match="the disk is gone"):
                found.model.read([Segment(state, text_of(rows))])
            found.model.release(state)
            assert not found.tiers.tiers.seats_are_held
    assert torch.equal(logits_of(found), before)
