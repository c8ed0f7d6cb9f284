"""What each slot costs on every stage and in main memory, and how many fit: one account of a plan. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from strata.engine.memory_plan import GIB, Growth, MemoryPlan, Place
from strata.engine.plan_parts import most_slots, room, total
from strata.engine.stage_plans import StagePlans

MOST_SLOTS = 32  # that may be asked for
THOUSAND = 1000


@dataclass(frozen=True)
class CostLine:
    """One thing that conversations take; bytes by place, 0 where they take none of it."""

    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class SlotCosts:
    """By place: the card of every stage in order, then main memory."""

    places: tuple[str, ...]
    context: int  # tokens of a slot
    slots: int  # that there are
    of_slot: tuple[CostLine, ...]  # what each has whatever its text, and what 1,000 tokens of it take
    full: tuple[int, ...]  # bytes of one slot whose text fills the context
    of_all: tuple[CostLine, ...]  # what all slots share, or give each other
    fitting: tuple[int | None, ...]  # slots of that context beside the experts as planned; None: they take nothing

    @property
    def most(self) -> int:
        """Slots that fit everywhere."""
        return min((count for count in self.fitting if count is not None), default=MOST_SLOTS)


def slot_costs(plans: StagePlans) -> SlotCosts:
    """The account of plans that fit."""
    single = len(plans.plans) == 1
    cards = ["card"] if single else [f"stage {number}" for number in range(1, len(plans.plans) + 1)]
    columns = [[each for each in plan.request.growing if each.place is Place.CARD] for plan in plans.plans]
    columns.append([each for plan in plans.plans for each in plan.request.growing if each.place is Place.RAM])
    names = list(dict.fromkeys(each.name for column in columns for each in column))
    of_slot = [
        CostLine(name, tuple(sum(each.per_slot for each in _named(column, name)) for column in columns))
        for name in names
    ]
    tokens = (math.ceil(THOUSAND * sum(each.per_token for each in column)) for column in columns)
    of_slot.append(CostLine("1,000 tokens", tuple(tokens)))
    of_all = [
        CostLine(name, tuple(total(_shared(column, name), 0, plans.context) for column in columns)) for name in names
    ]
    full = tuple(total(column, 1, plans.context) - total(column, 0, plans.context) for column in columns)
    return SlotCosts(
        (*cards, "main memory"),
        plans.context,
        plans.slots,
        tuple(line for line in of_slot if any(line.sizes)),
        full,
        tuple(line for line in of_all if any(line.sizes)),
        (*(_fitting_on_card(plan) for plan in plans.plans), _fitting_in_ram(plans, full[-1])),
    )


def cost_words(costs: SlotCosts) -> str:
    """In one sentence, for a log; without a full stop."""
    slots = "1 slot" if costs.slots == 1 else f"{costs.slots} slots"
    places = (
        f"{place} {size / GIB:.2f} GiB" + ("" if count is None else f" ({count} fit)")
        for place, size, count in zip(costs.places, costs.full, costs.fitting, strict=True)
        if size
    )
    return f"{slots}; one of {costs.context:,} tokens takes " + ", ".join(places)


def _named(column: Sequence[Growth], name: str) -> list[Growth]:
    return [each for each in column if each.name == name]


def _shared(column: Sequence[Growth], name: str) -> list[Growth]:
    """What does not grow with slots."""
    return [
        Growth(each.name, each.place, fixed=each.fixed, per_position=each.per_position) for each in _named(column, name)
    ]


def _fitting_on_card(plan: MemoryPlan) -> int:
    """Beside the experts as planned."""
    request = plan.request
    fitting = most_slots(request, plan.context, room(request, Place.CARD, plan.seats), Place.CARD, MOST_SLOTS)
    return min(MOST_SLOTS, fitting)


def _fitting_in_ram(plans: StagePlans, of_slot: int) -> int | None:
    """Beside those that there are as many as what is left has room for."""
    left = sum(max(0, plan.left(Place.RAM)) for plan in plans.plans)
    return min(MOST_SLOTS, plans.slots + left // of_slot) if of_slot else None
