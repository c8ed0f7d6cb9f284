"""The parts of a memory plan from what is decided: slots, context, and how much of the experts the card holds.

Pure arithmetic over bytes; decides nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from strata.engine.memory_plan import Growth, MemoryPlan, Place, PlannedPart, PlanRequest
from strata.experts.streaming import RING_ROOMS, RING_TILES
from strata.models.device.sizes import CELL_ROWS
from strata.models.needs import Part

EXPERT_SEATS, EXPERTS, READ_EXPERTS = "expert seats", "experts", "experts that are read"
FREE_PART = 8  # of main memory one part stays free beside files that are read: for the system's copies of their pages
# Of what is left for experts one part in so many is for those that lie there from the start on, which a card reads in
# place and seats are filled from. By replay half instead of a quarter is a quarter more reads (docs/log.md).
KEPT_PART = 4


@dataclass(frozen=True)
class Filed:
    """Bytes of main memory for experts where those without room stay in files."""

    kept: int  # that lie there from the start on
    read: int  # that are read when they are asked for


def plan_of(request: PlanRequest, slots: int, context: int, seats: int | None) -> MemoryPlan:
    """The plan with so many bytes of seats (None: all experts lie on the card); whether it fits is not looked at.

    Experts that may stay in files fill what is left of main memory.
    """
    least = _plan_of(request, slots, context, seats)
    if seats is None or not request.is_filed:
        return least
    return _plan_of(request, slots, context, seats, _filled(least, request.routed_bytes - seats))


def _plan_of(
    request: PlanRequest, slots: int, context: int, seats: int | None, filed: Filed | None = None
) -> MemoryPlan:
    grown = [PlannedPart(each.name, each.place, each.at(slots, context)) for each in request.growing]
    weights = [*weight_parts(request, Place.CARD, seats), *weight_parts(request, Place.RAM, seats, filed)]
    program = PlannedPart("program", Place.RAM, request.program)
    if seats is not None:
        grown.append(PlannedPart("experts on their way", Place.CARD, request.ring_bytes))
        from_files = RING_ROOMS * _pinned_bytes(request.ring_bytes // RING_TILES) if request.is_filed else 0
        grown.append(PlannedPart("experts on their way", Place.RAM, from_files))
    return MemoryPlan(request, slots, context, (*weights, *(part for part in (*grown, program) if part.size)), seats)


def _pinned_bytes(size: int) -> int:
    """What torch takes for so many bytes of pinned memory: a power of two."""
    return 1 << (size - 1).bit_length() if size else 0


def _filled(least: MemoryPlan, without_seat: int) -> Filed:
    """What the plan with the least of experts leaves of main memory, for both kinds of them.

    Where the user did not say how much there is to use, a part of it stays free.
    """
    request, ram = least.request, least.request.budgets.ram
    left = max(0, least.left(Place.RAM) - (ram.free // FREE_PART if ram.limit is None else 0))
    kept = request.whole_experts(min(left, (request.least_read + left) // KEPT_PART))
    return Filed(kept, min(request.least_read + left - kept, max(request.least_read, without_seat - kept)))


def weight_parts(
    request: PlanRequest, place: Place, seats: int | None, filed: Filed | None = None
) -> list[PlannedPart]:
    """The weights of one place; filed: None for the least of experts in main memory where others stay in files."""
    parts = _expert_parts(request, place, seats, filed or Filed(0, request.least_read))
    for part, size in request.weights.items():
        if part is Part.NGRAM and request.reads_tables:
            continue
        is_large_table = part is Part.NGRAM and request.large_table_bytes > 0
        if size and part is not Part.ROUTED and is_large_table is (place is Place.RAM):
            parts.append(PlannedPart(part.value, place, size))
    return parts


def _expert_parts(request: PlanRequest, place: Place, seats: int | None, filed: Filed) -> list[PlannedPart]:
    routed = request.routed_bytes
    if seats is None:
        sizes = {Part.ROUTED.value: routed if place is Place.CARD else 0}
    elif place is Place.CARD:
        sizes = {EXPERT_SEATS: seats}
    elif request.is_filed:
        sizes = {EXPERTS: filed.kept + request.spare_bytes(seats), READ_EXPERTS: filed.read}
    else:
        sizes = {EXPERTS: routed - seats + request.spare_bytes(seats) if request.is_exclusive else routed}
    return [PlannedPart(name, place, size) for name, size in sizes.items() if size]


def room(request: PlanRequest, place: Place, seats: int | None) -> int:
    """Bytes of a place that are left for what grows."""
    return _plan_of(request, 0, 0, seats).left(place)


def total(growing: Iterable[Growth], slots: int, context: int) -> int:
    """Bytes of parts that grow."""
    return sum(each.at(slots, context) for each in growing)


def longest_context(request: PlanRequest, slots: int, room_bytes: int, place: Place = Place.CARD) -> int:
    """The most tokens, a multiple of CELL_ROWS, of context for `slots` conversations in so much of a place.

    The model's own where context takes nothing of it.
    """
    growing = [each for each in request.growing if each.place is place]
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
