"""Where experts lie that do not all fit on the card: seats there, the others in main memory.

Pure arithmetic over bytes; knows no expert by name. Every GiB of seats is worth more than conversations that nobody
asked for: unasked, one conversation of up to 32,768 tokens may take a quarter of what is left beside the weights, and
more of them, up to 4, are given as long as all together take a tenth. The seats get the rest.
"""

from strata.engine.memory_plan import MemoryPlan, Place, PlanRequest
from strata.engine.plan_parts import longest_context, most_slots, plan_of, room
from strata.models.device.sizes import cells_of

CONTEXT_UNASKED = 32_768
CONTEXT_PART = 4  # the first conversation takes at most one part in four
SLOTS_PART = 10


def plan_tiers(request: PlanRequest, most_slots_unasked: int) -> MemoryPlan:
    """As many seats as fit beside modest conversations, or beside those asked for; below zero is left if none fit."""
    free = room(request, Place.CARD, 0)
    context = request.asked_context or _modest_context(request, free)
    slots = request.asked_slots or _modest_slots(request, context, free, most_slots_unasked)
    without = plan_of(request, slots, context, 0)
    return plan_of(request, slots, context, request.whole_experts(without.left(Place.CARD)))


def fewer_seats(plan: MemoryPlan, seats: int) -> MemoryPlan | None:
    """The plan with at most so many bytes of seats; None if it may not have fewer: as asked, or main memory is full."""
    if not plan.seats or plan.request.asked_cache is not None or seats < 0:
        return None
    fewer = plan_of(plan.request, plan.slots, plan.context, plan.request.whole_experts(min(seats, plan.seats)))
    return fewer if fewer.left(Place.RAM) >= 0 else None


def _modest_context(request: PlanRequest, free: int) -> int:
    longest = longest_context(request, request.asked_slots or 1, free // CONTEXT_PART)
    return max(request.least_context, min(request.longest_context, CONTEXT_UNASKED, longest))


def _modest_slots(request: PlanRequest, context: int, free: int, most: int) -> int:
    """Of a context that was asked for or is modest; main memory bounds them too."""
    return max(1, min(most, _slots_on_card(request, context, free, most), _slots_in_ram(request, context, most)))


def _slots_on_card(request: PlanRequest, context: int, free: int, most: int) -> int:
    """As many as take a tenth of what is free. What windows need for the context alone does not count as theirs."""
    of_context = sum(each.per_position for each in request.growing if each.place is Place.CARD) * cells_of(context)
    return most_slots(request, context, int(free // SLOTS_PART + of_context), Place.CARD, most)


def _slots_in_ram(request: PlanRequest, context: int, most: int) -> int:
    """As many as main memory has room for beside the experts, if one conversation and seats fill the card."""
    seats = request.whole_experts(plan_of(request, 1, context, 0).left(Place.CARD))
    return most_slots(request, context, room(request, Place.RAM, seats), Place.RAM, most)
