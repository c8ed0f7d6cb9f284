"""What slots cost by place: the lines add up to the plan's parts, and one slot more than fit does not fit."""

from dataclasses import replace

import pytest

from strata.engine.memory_plan import MARKS_A_SLOT, MemoryPlan, Place
from strata.engine.placement import plan_memory
from strata.engine.plan_parts import plan_of
from strata.engine.slot_costs import cost_words, slot_costs
from strata.engine.stage_plans import StagePlans, plan_stages
from tests.engine.test_placement import GIB, MIB, STATE, request
from tests.engine.test_stage_plans import SPLIT, half


def grown(plan: MemoryPlan, place: Place) -> int:
    weights = {"routed experts", "expert seats", "dense", "embedding", "n-gram table", "experts", "program"}
    return sum(part.size for part in plan.parts if part.place is place and part.name not in weights)


def test_the_lines_of_one_card_add_up_to_the_plan() -> None:
    plan = plan_memory(request(88))
    costs = slot_costs(StagePlans.single(plan, 48))
    assert (costs.places, costs.slots, costs.context) == (("card", "main memory"), plan.slots, plan.context)
    of_slot = {line.name: line.sizes for line in costs.of_slot}
    assert of_slot["state"] == (STATE.fixed, 0)
    assert of_slot["marks to go back to"] == (MARKS_A_SLOT * STATE.fixed, 0)
    assert of_slot["1,000 tokens"] == (1000 * STATE.per_token, 0)
    assert of_slot["checkpoints"] == (0, 5 * STATE.fixed)
    for column, place in enumerate(Place):
        shared = sum(line.sizes[column] for line in costs.of_all)
        assert plan.slots * costs.full[column] + shared == pytest.approx(grown(plan, place), abs=4)


@pytest.mark.parametrize("card", [76.5, 88, 24])
def test_as_many_as_fit_fit_and_one_more_does_not(card: float) -> None:
    plan = plan_memory(request(card, 128))
    on_card, in_ram = slot_costs(StagePlans.single(plan, 48)).fitting
    assert on_card is not None and in_ram is not None
    assert plan_of(plan.request, on_card, plan.context, plan.seats).left(Place.CARD) >= 0
    assert plan_of(plan.request, on_card + 1, plan.context, plan.seats).left(Place.CARD) < 0
    assert in_ram == 32 or plan_of(plan.request, in_ram + 1, plan.context, plan.seats).left(Place.RAM) < 0


def test_stages_have_a_column_each_and_main_memory_is_one() -> None:
    plans = plan_stages(SPLIT, [half(70, 40), replace(half(24, 40), program=0)])
    costs = slot_costs(plans)
    assert costs.places == ("stage 1", "stage 2", "main memory")
    assert {line.name: line.sizes for line in costs.of_slot}["checkpoints"] == (0, 0, 10 * 128 * MIB)
    left = 40 * GIB - sum(plan.used(Place.RAM) for plan in plans.plans)
    assert costs.fitting[2] == plans.slots + left // (10 * 128 * MIB)
    assert costs.most == min(count for count in costs.fitting if count is not None)
    words = cost_words(costs)
    assert words.startswith(f"{plans.slots} slot") and "stage 2 " in words and "main memory 1.25 GiB" in words
