"""How a memory plan looks: a table on a terminal, plain values as JSON. Decides nothing."""

from typing import Any

from rich.table import Table

from strata.cli.model_report import gib
from strata.engine.memory_plan import MemoryPlan, Place
from strata.engine.plan_parts import EXPERT_SEATS, EXPERTS, READ_EXPERTS
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


def plan_sentence(plan: MemoryPlan) -> str:
    """What the plan comes to, or why it does not fit."""
    if plan.refusal is not None:
        return plan.refusal
    many = "one conversation" if plan.slots == 1 else f"{plan.slots} conversations"
    cells = _cells_sentence(plan)
    return f"{many} of up to {plan.context:,} tokens at once{cells}{_experts_sentence(plan)}{_tables_sentence(plan)}"


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


def plan_as_json(plan: MemoryPlan) -> dict[str, Any]:
    """The plan as plain values; sizes in bytes."""
    return {
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
    sizes = [part.size for part in plan.parts if part.name == name and part.place is place]
    return gib(sum(sizes)) if sizes else ""
