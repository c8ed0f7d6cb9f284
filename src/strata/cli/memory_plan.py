"""How a memory plan looks: a table on a terminal, plain values as JSON. Decides nothing."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from strata.cli.model_report import gib
from strata.engine.memory_plan import MemoryPlan, Place, PlannedPart
from strata.engine.plan_parts import EXPERT_SEATS, EXPERTS, READ_EXPERTS
from strata.engine.slot_costs import SlotCosts, slot_costs
from strata.engine.stage_plans import StagePlans, stage_words
from strata.models.needs import Part


def plan_table(plan: MemoryPlan) -> Table:
    """One line a part, one column a place, then what is kept free and what is left."""
    table = Table("memory plan", box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for place in Place:
        table.add_column(place.value, justify="right", no_wrap=True)
    for name in dict.fromkeys(part.name for part in plan.parts):
        table.add_row(name, *(_cell(plan, name, place) for place in Place))
    budgets = plan.request.budgets
    table.add_row("reserve", gib(plan.request.reserve), "")
    table.add_row("left", *(signed(plan.left(place)) for place in Place))
    table.add_row("budget", gib(budgets.card.usable), gib(budgets.ram.usable), style="bold")
    return table


def stages_table(plans: StagePlans) -> Table:
    """The same of all stages: a column for the device of each, and one for main memory, where their parts add up."""
    if len(plans.plans) == 1:
        return plan_table(plans.plans[0])
    table = Table("memory plan", box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for number in range(len(plans.plans)):
        table.add_column(f"stage {number + 1}", justify="right", no_wrap=True)
    table.add_column(Place.RAM.value, justify="right", no_wrap=True)
    budgets = [plan.request.budgets for plan in plans.plans]
    table.add_row("device", *(each.card_name.partition(" (")[0] for each in budgets), "")
    table.add_row("layers", *(f"{run.start} to {run.stop - 1}" for run in plans.split.runs), "")
    for name in dict.fromkeys(part.name for plan in plans.plans for part in plan.parts):
        in_ram = sum(part.size for plan in plans.plans for part in plan.parts if _is(part, name, Place.RAM))
        cells = (_cell(plan, name, Place.CARD) for plan in plans.plans)
        table.add_row(name, *cells, gib(in_ram) if in_ram else "")
    table.add_row("experts held", *(_share_cell(plan) for plan in plans.plans), "")
    table.add_row("reserve", *(gib(plan.request.reserve) for plan in plans.plans), "")
    left = sum(plan.left(Place.RAM) for plan in plans.plans)
    table.add_row("left", *(signed(plan.left(Place.CARD)) for plan in plans.plans), signed(left))
    used = sum(plan.used(Place.RAM) for plan in plans.plans)
    table.add_row("budget", *(gib(each.card.usable) for each in budgets), gib(left + used), style="bold")
    return table


def costs_table(costs: SlotCosts) -> Table:
    """What a slot takes line by line, what all of them share, and how many fit, by place."""
    table = Table("what slots cost", box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for place in costs.places:
        table.add_column(place, justify="right", no_wrap=True)
    for line in costs.of_slot:
        table.add_row(f"each: {line.name}", *(gib(size) if size else "" for size in line.sizes))
    table.add_row(
        f"each of {costs.context:,} tokens", *(gib(size) if size else "" for size in costs.full), style="bold"
    )
    for line in costs.of_all:
        table.add_row(f"all: {line.name}", *(gib(size) if size else "" for size in line.sizes))
    table.add_row("slots that fit", *("" if count is None else str(count) for count in costs.fitting), style="bold")
    return table


def _share_cell(plan: MemoryPlan) -> str:
    return f"{plan.seat_share:.0%}" if plan.request.routed_bytes else ""


def plan_sentence(plan: MemoryPlan) -> str:
    """What the plan comes to, or why it does not fit."""
    if plan.refusal is not None:
        return plan.refusal
    return f"{_many(plan)}{_cells_sentence(plan)}{_experts_sentence(plan)}{_tables_sentence(plan)}"


def stages_sentence(plans: StagePlans) -> str:
    """What the plans of all stages come to, or why they do not fit."""
    if len(plans.plans) == 1:
        return plan_sentence(plans.plans[0])
    if plans.refusal is not None:
        return plans.refusal
    first = plans.plans[0]
    stages = "; ".join(
        f"{stage_words(plans.split, number)} on {plan.request.budgets.card_name}{_held_words(plan)}"
        for number, plan in enumerate(plans.plans)
    )
    return f"{_many(first)}{_cells_sentence(first)}; {stages}{''.join(map(_tables_sentence, plans.plans))}"


def _many(plan: MemoryPlan) -> str:
    many = "one conversation" if plan.slots == 1 else f"{plan.slots} conversations"
    return f"{many} of up to {plan.context:,} tokens at once, keys and values as {plan.request.kv_kind.value}"


def _held_words(plan: MemoryPlan) -> str:
    """How much of a stage's experts its device holds."""
    if not plan.request.routed_bytes:
        return ""
    return " with all of its experts" if plan.seats is None else f" with {plan.seat_share:.0%} of its experts"


def _cells_sentence(plan: MemoryPlan) -> str:
    """That keys and values lie in main memory, if they do."""
    kept = min(plan.request.kv_resident, plan.context)
    return f"; main memory holds their keys and values, the card those of {kept:,} tokens of each" if kept else ""


def _experts_sentence(plan: MemoryPlan) -> str:
    """Where the experts lie, if not all of them on the card."""
    if plan.seats is None:
        return ""
    on_card = f"the card holds {plan.seat_share:.0%} of the experts" if plan.seats else "the card holds no expert"
    if plan.request.is_filed:
        kept, read = (_part_share(plan, name) for name in (EXPERTS, READ_EXPERTS))
        return (
            f"; {on_card}, main memory {kept:.0%} and room for {read:.0%} that are read from the model's files when "
            "they are asked for"
        )
    in_ram = "the others" if plan.request.is_exclusive else "all of them"
    held = sum(part.size for part in plan.parts if part.name in (EXPERT_SEATS, EXPERTS)) / plan.request.routed_bytes
    return f"; {on_card}, main memory {in_ram}, both together {held:.2f} times their size"


def _part_share(plan: MemoryPlan, name: str) -> float:
    """Of the experts' bytes."""
    return sum(part.size for part in plan.parts if part.name == name) / plan.request.routed_bytes


def _tables_sentence(plan: MemoryPlan) -> str:
    """That n-gram tables stay in their files, if they do."""
    size = table_bytes_in_files(plan)
    return f"; n-gram tables, {gib(size)}, stay in their files" if size else ""


def table_bytes_in_files(plan: MemoryPlan) -> int:
    """Of n-gram tables that windows ask for rows, as memory would hold them."""
    return plan.request.weights.get(Part.NGRAM, 0) if plan.request.reads_tables else 0


def stages_as_json(plans: StagePlans) -> dict[str, Any]:
    """The first stage's plan as plain values, with those of all under `stages` and what slots cost where it fits."""
    stages = [
        {"layers": [run.start, run.stop], "device": plan.request.budgets.card_name, **plan_as_json(plan)}
        for run, plan in zip(plans.split.runs, plans.plans, strict=True)
    ]
    costs = None if plans.refusal is not None else asdict(slot_costs(plans))
    return {**plan_as_json(plans.plans[0]), "refusal": plans.refusal, "stages": stages, "slot_costs": costs}


def plan_as_json(plan: MemoryPlan) -> dict[str, Any]:
    """The plan as plain values; sizes in bytes."""
    return {
        "kv_kind": plan.request.kv_kind.value,
        "slots": plan.slots,
        "context": plan.context,
        "expert_seats_bytes": plan.seats,
        "parts": [{"name": part.name, "place": part.place.value, "bytes": part.size} for part in plan.parts],
        "tables_in_files_bytes": table_bytes_in_files(plan),
        "reserve_bytes": plan.request.reserve,
        "left_bytes": {place.value: plan.left(place) for place in Place},
        "refusal": plan.refusal,
    }


def signed(size: int) -> str:
    """Bytes in words, also below zero."""
    return gib(size) if size >= 0 else f"-{gib(-size)}"


def _cell(plan: MemoryPlan, name: str, place: Place) -> str:
    sizes = [part.size for part in plan.parts if _is(part, name, place)]
    return gib(sum(sizes)) if sizes else ""


def _is(part: PlannedPart, name: str, place: Place) -> bool:
    return part.name == name and part.place is place
