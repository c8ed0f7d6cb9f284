"""Several stages: all have the slots and the context of the least, and what they take of main memory adds up."""

from dataclasses import replace

import pytest

from strata.engine.memory_plan import Budget, Growth, MemoryPlan, Place, PlanRequest, TableRoom
from strata.engine.placement import plan_memory
from strata.engine.stage_plans import StagePlans, alike, left_in_ram, plan_stages, smaller_plans, stage_words
from strata.models.device.layer_split import LayerSplit
from strata.models.needs import Part
from tests.engine.test_placement import GIB, MIB, request

SPLIT = LayerSplit.of(48, (24,))
SMALL = {Part.ROUTED: 60 * GIB, Part.DENSE: 4 * GIB, Part.EMBEDDING: GIB}


def half(card: float, ram: float = 128, **changes: object) -> PlanRequest:
    """Half of the model of 60 GiB of experts, with all of main memory in its budget."""
    whole = request(card, ram, weights={part: size // 2 for part, size in SMALL.items()})
    ram_budget = Budget(int(256 * GIB), int(ram * GIB))
    made = replace(
        whole,
        routed_weights=whole.routed_weights // 2,
        blobs=((5 * MIB // 2, 12 * 1024),),
        budgets=replace(whole.budgets, ram=ram_budget),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def numbers(plan: MemoryPlan) -> tuple[int, int, int | None]:
    return plan.slots, plan.context, plan.seats


@pytest.mark.parametrize(
    ("card", "asked"), [(80, {}), (40, {}), (24, {"asked_slots": 3}), (70, {"asked_context": 512})]
)
def test_one_stage_is_planned_as_ever(card: float, asked: dict[str, int]) -> None:
    alone = replace(request(card, 128, **asked), weights=SMALL)
    found = plan_stages(LayerSplit(48), [alone])
    assert numbers(found.plans[0]) == numbers(plan_memory(alone))
    assert (found.refusal, found.plans[0].parts) == (None, plan_memory(alone).parts)


def test_slots_and_context_are_those_of_the_least() -> None:
    first, second = half(70), half(24)
    found = plan_stages(SPLIT, [first, second])
    alone = plan_memory(second)
    assert found.refusal is None and found.has_tiers
    assert found.plans[0].seats is None and found.plans[1].seats is not None
    assert (found.slots, found.context) == (found.plans[1].slots, found.plans[1].context) == (1, alone.context)
    assert plan_memory(first).context > found.context
    assert found.seat_share == pytest.approx((30 * GIB + found.plans[1].seats) / (60 * GIB))
    assert [plan.request.asked_slots for plan in found.plans] == [None, None]  # nobody asked: they may give way


def test_main_memory_is_one() -> None:
    requests = [half(24), replace(half(24), program=0)]
    found = plan_stages(SPLIT, requests)
    used = sum(plan.used(Place.RAM) for plan in found.plans)
    assert used > 60 * GIB and all(plan.left(Place.RAM) >= 0 for plan in found.plans)
    assert sum(plan.request.budgets.ram.usable for plan in found.plans) == pytest.approx(128 * GIB, abs=2)
    assert left_in_ram(found.plans, 128 * GIB) == 128 * GIB - used
    short = plan_stages(
        SPLIT, [replace(each, budgets=replace(each.budgets, ram=Budget(GIB, 50 * GIB))) for each in requests]
    )
    assert short.refusal is not None
    assert "does not fit on 2 stages with main memory beside them: all together need 6" in short.refusal
    assert "with `--resident`, which keeps no expert in both, it fits" in short.refusal
    used = sum(plan.used(Place.RAM) for plan in short.plans)
    assert sum(plan.left(Place.RAM) for plan in short.plans) == pytest.approx(50 * GIB - used, abs=2)  # what is missing


def test_slots_that_nobody_asked_for_go_before_main_memory_is_short() -> None:
    slots = Growth("points", Place.RAM, per_slot=8 * GIB)
    requests = [replace(each, growing=(*each.growing, slots)) for each in (half(70, 36), half(70, 36))]
    found = plan_stages(SPLIT, requests)
    assert (found.refusal, found.slots) == (None, 2)
    asked = plan_stages(SPLIT, [replace(each, asked_slots=3) for each in requests])
    assert asked.refusal is not None and "points 48" in asked.refusal


def test_cells_in_main_memory_shorten_the_context() -> None:
    cells = Growth("keys and values", Place.RAM, per_token=128 * 1024)
    requests = [replace(each, growing=(*each.growing, cells)) for each in (half(70, 20), half(70, 20))]
    found = plan_stages(SPLIT, requests)
    assert (found.refusal, found.slots) == (None, 1)
    assert found.context < min(plan_memory(half(70)).context, 131072) and found.context % 512 == 0
    assert left_in_ram(found.plans, 20 * GIB) < 512 * 2 * 128 * 1024  # one run of cells more would not fit
    asked = plan_stages(SPLIT, [replace(each, asked_context=131072) for each in requests])
    assert asked.refusal is not None and "keys and values 32.0" in asked.refusal


def test_tables_stay_in_files_and_then_experts_as_the_settings_say() -> None:
    table = {**{part: size // 2 for part, size in SMALL.items()}, Part.NGRAM: 24 * GIB}
    first = replace(half(24, 75), weights=table, tables=TableRoom.AUTO, table_problem=None)
    found = plan_stages(SPLIT, [first, half(24, 75)])
    assert found.refusal is None and found.plans[0].request.reads_tables
    filed = [replace(each, is_filed=True, filing_problem=None, most_asked=64) for each in (first, half(24, 75))]
    apart = plan_stages(
        SPLIT, [replace(each, budgets=replace(each.budgets, ram=Budget(GIB, 50 * GIB))) for each in filed]
    )
    assert apart.refusal is None
    assert all(plan.request.is_exclusive and not plan.request.is_filed for plan in apart.plans)
    least = plan_stages(
        SPLIT, [replace(each, budgets=replace(each.budgets, ram=Budget(GIB, 12 * GIB))) for each in filed]
    )
    assert least.refusal is None and all(plan.request.is_filed for plan in least.plans)
    assert 10.4 * GIB < sum(plan.used(Place.RAM) for plan in least.plans) <= 12 * GIB


def test_a_stage_whose_card_is_too_small_is_named() -> None:
    found = plan_stages(SPLIT, [half(24), half(3)])
    assert found.refusal is not None
    assert found.refusal.startswith("stage 2 of 2 (layers 24 to 47): this model does not fit on a card")
    many = plan_stages(SPLIT, [half(24, asked_slots=9), half(12, asked_slots=9, asked_context=32_768)])
    assert many.refusal is not None and "stage 2 of 2" in many.refusal and "setting slots: 9" in many.refusal
    assert stage_words(LayerSplit.of(3, (1,)), 0) == "stage 1 of 2 (layer 0)"


def test_what_one_stage_gives_up_the_others_have_no_more_of() -> None:
    found = plan_stages(SPLIT, [half(70, asked_context=4096), half(24, asked_context=4096)])
    fewer = smaller_plans(found, 1)
    assert fewer is not None and fewer.plans[0] is found.plans[0]
    assert (fewer.plans[1].seats or 0) < (found.plans[1].seats or 0) and fewer.slots == found.slots
    whole = plan_stages(SPLIT, [half(70), half(70)])
    less = smaller_plans(whole, 0)
    assert less is not None and less.slots == whole.slots // 2
    assert len({(plan.slots, plan.context) for plan in less.plans}) == 1
    asked = plan_stages(SPLIT, [half(70, asked_slots=2, asked_context=512)] * 2)
    assert smaller_plans(asked, 0) is None
    short = alike(whole, [replace(whole.plans[0], context=1024), whole.plans[1]])
    assert [plan.context for plan in short.plans] == [1024, 1024]
    assert StagePlans.single(whole.plans[0], 48).split.stages == 1
