"""A plan as a table and as plain values: every part in its place, what is left, and below zero where it is too much."""

from dataclasses import replace

import pytest
from rich.console import Console

from strata.cli.memory_plan import (
    costs_table,
    plan_as_json,
    plan_sentence,
    plan_table,
    signed,
    stages_as_json,
    stages_sentence,
    stages_table,
)
from strata.engine.checkpoint_budget import checkpoint_growth
from strata.engine.memory_plan import Budget, Budgets, MemoryPlan, Place, PlanRequest, conversations
from strata.engine.placement import plan_memory
from strata.engine.slot_costs import slot_costs
from strata.engine.stage_plans import plan_stages
from strata.models.needs import Part, StateBytes
from tests.engine.test_stage_plans import SPLIT, half

GIB = 1 << 30
REQUEST = PlanRequest(
    Budgets("a card", Budget(24 * GIB, 23 * GIB), Budget(64 * GIB, 60 * GIB)),
    {Part.ROUTED: 12 * GIB, Part.NGRAM: 20 * GIB},
    24 * GIB,
    (*conversations(StateBytes(GIB // 4, 65536)), checkpoint_growth(GIB // 4, None, 60 * GIB, None)),
    16_384,
    GIB,
)


def shown(plan: MemoryPlan, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The table's lines, cut at runs of spaces."""
    Console(width=80).print(plan_table(plan))
    return [line.split("  ") for line in capsys.readouterr().out.splitlines()]


def test_every_part_has_a_line_and_each_place_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {
        line[0]: [cell.strip() for cell in line[1:] if cell.strip()] for line in shown(plan_memory(REQUEST), capsys)
    }
    assert lines["memory plan"] == ["card", "RAM"]
    assert lines["routed experts"] == ["12.0 GiB"]
    assert lines["n-gram table"] == ["20.0 GiB"]
    assert lines["state"] == ["5.0 GiB"]  # four conversations of 16,384 tokens
    assert lines["budget"] == ["23.0 GiB", "60.0 GiB"]
    assert lines["checkpoints"] == ["3.0 GiB"]  # three of each: more would be above a 32nd of what may be used
    assert lines["left"] == ["3.0 GiB", "36.5 GiB"]


def test_what_is_too_much_is_below_zero(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_memory(replace(REQUEST, weights={Part.ROUTED: 30 * GIB}))
    (left,) = (line for line in shown(plan, capsys) if line[0] == "left")
    assert "-9.0 GiB" in " ".join(left)
    assert plan_sentence(plan).startswith("this model does not fit on a card")
    assert signed(-(3 << 20)) == "-3.0 MiB"


def test_plain_values_hold_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_memory(REQUEST)
    values = plan_as_json(plan)
    assert (values["slots"], values["context"], values["refusal"]) == (4, 16_384, None)
    assert (
        sum(part["bytes"] for part in values["parts"] if part["place"] == "RAM") + values["left_bytes"]["RAM"]
        == 60 * GIB
    )
    assert plan_sentence(plan) == "4 conversations of up to 16,384 tokens at once, keys and values as bf16"
    kept = "; main memory holds their keys and values, the card those of 4,096 tokens of each"
    assert plan_sentence(plan_memory(replace(REQUEST, kv_resident=4096))).endswith(kept)


@pytest.mark.parametrize(("is_exclusive", "told"), [(False, "all of them"), (True, "the others")])
def test_a_plan_with_seats_says_where_experts_lie_and_how_often(is_exclusive: bool, told: str) -> None:
    tiered = replace(REQUEST, blobs=((3 << 20, 4096),), asked_cache=3 * GIB, is_exclusive=is_exclusive)
    plan = plan_memory(tiered)
    assert plan.refusal is None
    held = (12 * GIB + 64 * (3 << 20)) / (12 * GIB) if is_exclusive else 1.25
    assert plan_sentence(plan).endswith(
        f"; the card holds 25% of the experts, main memory {told}, both together {held:.2f} times their size"
    )


def test_a_plan_that_leaves_experts_in_files_says_how_many_lie_in_memory() -> None:
    ram = Budget(64 * GIB, 60 * GIB, 27 * GIB)
    filed = replace(REQUEST, blobs=((3 << 20, 4096),), asked_cache=3 * GIB, is_filed=True, most_asked=256)
    filed = replace(filed, filing_problem=None, budgets=replace(REQUEST.budgets, ram=ram))
    plan = plan_memory(filed)
    assert plan.refusal is None
    assert plan_sentence(plan) == (
        "4 conversations of up to 16,384 tokens at once, keys and values as bf16; the card holds 25% of the experts, "
        "main memory 8% and room for 21% that are read from the model's files when they are asked for"
    )
    assert {part["name"] for part in plan_as_json(plan)["parts"]} >= {
        "expert seats",
        "experts",
        "experts that are read",
    }


def test_stages_have_a_column_each_and_what_they_share_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    plans = plan_stages(SPLIT, [half(70, 100), replace(half(24, 100), program=0)])
    Console(width=120).print(stages_table(plans))
    Console(width=120).print(costs_table(slot_costs(plans)))
    lines = {
        line[0]: [cell.strip() for cell in line[1:] if cell.strip()]
        for line in (line.split("  ") for line in capsys.readouterr().out.splitlines())
    }
    assert lines["memory plan"] == ["stage 1", "stage 2", "RAM"]
    assert lines["layers"] == ["0 to 23", "24 to 47"]
    assert lines["experts held"] == ["100%", f"{plans.plans[1].seat_share:.0%}"]
    used = sum(plan.used(Place.RAM) for plan in plans.plans)
    assert lines["left"][2] == signed(100 * GIB - used) and lines["budget"][2] == "100.0 GiB"
    assert lines["each: checkpoints"] == ["1.2 GiB"] and len(lines["slots that fit"]) == 3
    told = stages_sentence(plans)
    assert told.startswith(
        "one conversation of up to 32,768 tokens at once, keys and values as bf16; stage 1 of 2 (lay"
    )
    assert f"stage 2 of 2 (layers 24 to 47) on a card with {plans.plans[1].seat_share:.0%} of its experts" in told
    values = stages_as_json(plans)
    assert [each["layers"] for each in values["stages"]] == [[0, 24], [24, 48]]
    assert values["slot_costs"]["slots"] == 1 and values["kv_kind"] == "bf16"
    refused = plan_stages(SPLIT, [half(70, 100), half(2, 100)])
    assert stages_sentence(refused) == refused.refusal == stages_as_json(refused)["refusal"]
