"""A stage whose experts lie in tiers is loaded as planned, gives up seats first, and answers as if it had them all."""

from dataclasses import replace
from functools import cache
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch

from strata.engine import part_loading, tier_loading
from strata.engine.device_needs import plan_for
from strata.engine.memory_plan import Budget, Budgets, MemoryPlan, Place
from strata.engine.plan_parts import weight_parts
from strata.engine.stage_loading import Card, LoadedStage, ModelFiles, load_stage, plan_notices
from strata.engine.stage_plans import StagePlans
from strata.engine.tier_loading import TierWishes, plan_store, tiers_problem
from strata.errors import ModelError
from strata.experts import store_plan
from strata.experts.host_memory import Pinning
from strata.models.base import Segment
from strata.native import library
from strata.settings import EngineSettings
from tests.gpu.tiny_models import tiny_model

GIB = 1 << 30
TINY = ("qwen3_moe", "qwen4_exp")
BUDGETS = Budgets("a card", Budget(8 * GIB, 8 * GIB), Budget(8 * GIB, 8 * GIB))
CPU = Card(torch.device("cpu"), lambda: 8 * GIB, lambda: None)
PINNING = Pinning(lambda *_: None, lambda _: None)
needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


def planned(name: str, share: float | None, *, is_exclusive: bool = False) -> MemoryPlan:
    """Two conversations beside seats for a share of the experts; None: beside all of them."""
    source = tiny_model(name, "code8").source
    settings = EngineSettings(slots=2, groups=2, context=256, resident=is_exclusive, gpu_reads="windows", parked_gib=0)
    whole = plan_for(source, settings, BUDGETS)
    assert whole.seats is None
    if share is None:
        return whole
    cache_gib = share * whole.request.routed_bytes / GIB
    return plan_for(source, replace(settings, cache_gib=cache_gib), BUDGETS)


def loaded(name: str, plan: MemoryPlan, card: Card = CPU, wishes: TierWishes | None = None) -> LoadedStage:
    tiny = tiny_model(name, "code8")
    return load_stage(ModelFiles(tiny.family, tiny.config, tiny.source, tiny.names), card, plan, wishes=wishes)


def logits_of(found: LoadedStage) -> torch.Tensor:
    model = found.model
    return model.read([Segment(model.new_state(), torch.arange(40) % 96)]).logits


@cache
def wanted(name: str) -> torch.Tensor:
    """With every expert on the device."""
    whole = loaded(name, planned(name, None))
    assert whole.tiers is None
    return logits_of(whole)


@needs_library
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("share", "is_exclusive"), [(0.0, False), (0.4, False), (0.4, True), (0.9, True)])
def test_a_stage_in_tiers_is_loaded_as_planned_and_answers_the_same(
    name: str, share: float, is_exclusive: bool
) -> None:
    plan = planned(name, share, is_exclusive=is_exclusive)
    assert plan.seats is not None
    found = loaded(name, plan, wishes=TierWishes(threads=2))
    assert found.tiers is not None
    store, tiers = found.tiers.store, found.tiers.tiers
    assert 0 <= plan.seats - store.seat_bytes < store.blob_bytes.max() + plan.seats // 50  # blobs are filled up to 256
    assert store.is_exclusive == is_exclusive
    assert torch.equal(logits_of(found), wanted(name))
    assert tiers.counts().cpu.experts > 0
    assert found.notices == ()


def unasked(plan: MemoryPlan) -> MemoryPlan:
    """The plan as if its seats were what had been left, without a reserve, which is large beside a tiny model."""
    return replace(plan, request=replace(plan.request, asked_cache=None, reserve=0))


def card_that_lacks(plan: MemoryPlan, missing: int, pinning: Pinning | None = None) -> Card:
    """A card on which the plan leaves so many bytes less than nothing once the weights are written."""
    written = sum(part.size for part in weight_parts(plan.request, Place.CARD, plan.seats))
    free = plan.used(Place.CARD) + plan.request.reserve - written - missing
    told = chain([BUDGETS.card.free], repeat(free))  # before and after
    return Card(torch.device("cpu"), lambda: next(told), lambda: None, lambda: pinning)


@needs_library
@pytest.mark.parametrize("is_exclusive", [False, True])
def test_a_card_with_less_room_than_planned_has_fewer_seats(
    monkeypatch: pytest.MonkeyPatch, is_exclusive: bool
) -> None:
    name = "qwen4_exp"
    monkeypatch.setattr(store_plan, "SEAT_PIECE_BYTES", 1)
    plan = unasked(planned(name, 0.9, is_exclusive=is_exclusive))
    assert plan.seats is not None
    found = loaded(name, plan, card_that_lacks(plan, plan.seats // 2, PINNING))
    assert found.tiers is not None and found.plan.seats is not None
    store, tiers = found.tiers.store, found.tiers.tiers
    assert (found.plan.slots, found.plan.context) == (plan.slots, plan.context)
    assert 0.4 * plan.seats < store.seat_bytes <= found.plan.seats <= plan.seats // 2
    assert torch.equal(logits_of(found), wanted(name))
    assert np.array_equal(torch.stack([tables.resident for tables in tiers.tables]).numpy(), store.resident)
    assert np.array_equal(torch.stack([tables.in_place for tables in tiers.tables]).numpy(), store.in_ram)
    (notice,) = found.notices
    assert notice == "the card had room for 44% of the experts and not for 89%"


@needs_library
def test_a_card_that_others_fill_before_the_weights_are_written_has_fewer_seats() -> None:
    plan = unasked(planned("qwen3_moe", 0.9))
    assert plan.seats is not None
    needed = plan.used(Place.CARD) + plan.request.reserve
    told = chain([needed - plan.seats // 2], repeat(BUDGETS.card.free))
    found = loaded("qwen3_moe", plan, Card(torch.device("cpu"), lambda: next(told), lambda: None))
    assert found.tiers is not None
    assert 0.4 * plan.seats < found.tiers.store.seat_bytes <= plan.seats // 2
    assert torch.equal(logits_of(found), wanted("qwen3_moe"))
    with pytest.raises(ModelError, match="does not fit on a card"):
        loaded("qwen3_moe", plan, Card(torch.device("cpu"), lambda: 0, lambda: None))


@needs_library
def test_a_card_that_runs_out_while_room_is_made_gives_up_seats_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, seen = part_loading.Stage, []

    def full(description: Any, sizes: Any, beside: Any) -> Any:
        seen.append(sizes.slots)
        if len(seen) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return stage(description, sizes, beside=beside)

    monkeypatch.setattr(part_loading, "Stage", full)
    found = loaded("qwen3_moe", unasked(planned("qwen3_moe", 0.5)))
    assert found.tiers is not None
    assert (found.plan.seats, found.tiers.store.seat_bytes) == (
        0,
        0,
    )  # a GiB less, at least
    assert seen == [2, 2, 2]  # the first one failed; then one for each group
    assert torch.equal(logits_of(found), wanted("qwen3_moe"))


@needs_library
def test_memory_that_is_not_pinned_is_told_and_nothing_is_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Pinning(lambda *_: "CUDA says 2", lambda _: None)
    card = replace(CPU, pinning=lambda: refusing)
    found = loaded("qwen3_moe", planned("qwen3_moe", 0.5), card)
    assert found.tiers is not None
    assert not found.tiers.store.is_pinned
    (notice,) = found.notices
    assert notice.startswith("the system does not pin the 0.0 GiB of the experts in main memory (CUDA says 2")


@needs_library
def test_an_exclusive_store_does_not_mix_pinned_memory_with_other() -> None:
    refused = chain([None, None], repeat("CUDA says 2"))  # a layer's worth, and the spare place
    pinning = Pinning(lambda *_: next(refused), lambda _: None)
    plan = unasked(planned("qwen3_moe", 0.5, is_exclusive=True))
    assert plan.seats is not None
    with pytest.raises(ModelError, match="does not pin"):
        loaded("qwen3_moe", plan, card_that_lacks(plan, plan.seats, pinning))


def test_the_hottest_experts_have_seats() -> None:
    tiny, plan = tiny_model("qwen3_moe", "code8"), planned("qwen3_moe", 0.5)
    shape = plan_store(tiny.source, tiny.names, plan, TierWishes()).has_seat.shape
    heat = np.random.default_rng(0).random(shape)
    has_seat = plan_store(tiny.source, tiny.names, plan, TierWishes(heat)).has_seat
    assert heat[has_seat].min() > heat[~has_seat].max()
    with pytest.raises(ValueError, match="heat of"):
        plan_store(tiny.source, tiny.names, plan, TierWishes(heat[:1]))


def test_experts_beside_the_card_need_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_loading.library, "is_available", lambda: False)
    problem = tiers_problem(planned("qwen3_moe", 0.5))
    assert problem is not None
    assert problem.startswith("the card holds 50% of the experts, and the others are computed by the C++ library")
    assert tiers_problem(planned("qwen3_moe", None)) is None
    monkeypatch.setattr(tier_loading.library, "is_available", lambda: True)
    assert tiers_problem(planned("qwen3_moe", 0.5)) is None


def test_more_experts_of_a_token_than_a_windows_plan_has_room_for_need_a_card_that_holds_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tier_loading.library, "is_available", lambda: True)
    plan = planned("qwen3_moe", 0.5)
    assert plan.request.ranks == tiny_model("qwen3_moe", "code8").source.config["num_experts_per_tok"]
    wide = replace(plan, request=replace(plan.request, ranks=16))
    assert tiers_problem(wide) is None
    wider = replace(plan, request=replace(plan.request, ranks=17))
    assert tiers_problem(wider) == (
        "the card holds 50% of the experts, and a token takes 17 of a layer: 16 are the most unless the card holds all"
    )
    assert tiers_problem(replace(wider, seats=None)) is None


def test_the_user_hears_why_the_context_is_short() -> None:
    plan = planned("qwen3_moe", 0.5)
    plan = replace(plan, request=replace(plan.request, asked_context=None))
    plans = StagePlans.single(plan, 2)
    (told,) = plan_notices(plans, plans, 131072)
    assert told == (
        "the context is 256 tokens, which leaves room for experts on the card; the model was made for 131,072"
    )
