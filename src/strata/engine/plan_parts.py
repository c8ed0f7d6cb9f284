"""The parts of a memory plan from what is decided: slots, context, and how much of the experts the card holds.

Pure arithmetic over bytes; decides nothing.
"""

from collections.abc import Iterable

from strata.engine.memory_plan import Growth, MemoryPlan, Place, PlannedPart, PlanRequest
from strata.models.device.sizes import CELL_ROWS
from strata.models.needs import PROGRAM_BYTES, Part

EXPERT_SEATS, EXPERTS = "expert seats", "experts"


def plan_of(request: PlanRequest, slots: int, context: int, seats: int | None) -> MemoryPlan:
    """The plan with so many bytes of seats (None: all experts lie on the card); whether it fits is not looked at."""
    grown = [PlannedPart(each.name, each.place, each.at(slots, context)) for each in request.growing]
    weights = [*weight_parts(request, Place.CARD, seats), *weight_parts(request, Place.RAM, seats)]
    program = PlannedPart("program", Place.RAM, PROGRAM_BYTES)
    return MemoryPlan(request, slots, context, (*weights, *(part for part in grown if part.size), program), seats)


def weight_parts(request: PlanRequest, place: Place, seats: int | None) -> list[PlannedPart]:
    """The weights of one place."""
    parts = _expert_parts(request, place, seats)
    for part, size in request.weights.items():
        is_large_table = part is Part.NGRAM and size > request.most_table_bytes
        if size and part is not Part.ROUTED and is_large_table is (place is Place.RAM):
            parts.append(PlannedPart(part.value, place, size))
    return parts


def _expert_parts(request: PlanRequest, place: Place, seats: int | None) -> list[PlannedPart]:
    routed = request.routed_bytes
    if seats is None:
        sizes = {Part.ROUTED.value: routed if place is Place.CARD else 0}
    elif place is Place.CARD:
        sizes = {EXPERT_SEATS: seats}
    else:
        sizes = {EXPERTS: routed - seats + request.spare_bytes(seats) if request.is_exclusive else routed}
    return [PlannedPart(name, place, size) for name, size in sizes.items() if size]


def room(request: PlanRequest, place: Place, seats: int | None) -> int:
    """Bytes of a place that are left for what grows."""
    return plan_of(request, 0, 0, seats).left(place)


def total(growing: Iterable[Growth], slots: int, context: int) -> int:
    """Bytes of parts that grow."""
    return sum(each.at(slots, context) for each in growing)


def longest_context(request: PlanRequest, slots: int, room_bytes: int) -> int:
    """The most tokens, a multiple of CELL_ROWS, of context for `slots` conversations in so much of the card."""
    growing = [each for each in request.growing if each.place is Place.CARD]
    a_token = sum(each.per_position + each.per_token * slots for each in growing)
    left = room_bytes - slots * sum(each.per_slot for each in growing)
    if a_token <= 0:
        return request.longest_context
    return max(0, int((left - len(growing)) / a_token)) // CELL_ROWS * CELL_ROWS


def most_slots(request: PlanRequest, context: int, room_bytes: int, place: Place, most: int) -> int:
    """How many conversations of this context fit into what is left of a place; `most` if they take nothing of it."""
    growing = [each for each in request.growing if each.place is place]
    none, one = total(growing, 0, context), total(growing, 1, context)
    left = room_bytes - none + sum(each.fixed for each in growing)
    return max(0, left) // (one - none) if one > none else most
