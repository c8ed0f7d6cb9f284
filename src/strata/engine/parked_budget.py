"""How much main memory conversations have whose slots are wanted. Pure arithmetic over bytes."""

import dataclasses
import sys

from strata.engine.memory_plan import GIB, LEAST_CONTEXT, Growth, MemoryPlan, Place
from strata.engine.plan_parts import plan_of
from strata.engine.steps import ParkingSpace
from strata.errors import SettingsError
from strata.hardware import MemoryFacts
from strata.models.needs import StateBytes
from strata.state.kv import CELL_STEP

PARKED = "parked conversations"
# Unasked it is the least of these: a part of what may be used, a part of what is left of it, conversations that fill
# their context, and no more than is pinned in a few seconds.
RAM_PART, LEFT_PART, MOST_CONVERSATIONS, MOST_BYTES = 16, 4, 32, 8 * GIB
GROWN = 1.25  # of the rows that a state on the CPU has, the most that it has room for, but for CELL_STEP of them


def asked_parking(asked_gib: float | None, usable: int) -> int:
    """Bytes that the settings ask for, of main memory of which so many may be used; 0 where they leave it open.

    Raises SettingsError for more than there is.
    """
    if asked_gib is not None and asked_gib * GIB > usable:
        raise SettingsError(
            f"setting parked_gib: {asked_gib:g} does not work: {usable / GIB:.1f} GiB of main memory may be used in "
            "all; a smaller number does, and leaving it out takes a small part"
        )
    return int((asked_gib or 0) * GIB)


def parking_growth(asked_gib: float | None, usable: int) -> tuple[Growth, ...]:
    """The part of a plan that the settings ask for; see `asked_parking`."""
    size = asked_parking(asked_gib, usable)
    return (Growth(PARKED, Place.RAM, fixed=size),) if size else ()


def with_parking(plan: MemoryPlan, state: StateBytes) -> MemoryPlan:
    """A plan for which nothing had to be given up, with as much for them as nobody asked for."""
    size = unasked_parking(plan.left(Place.RAM), plan.request.budgets.ram.usable, state, plan.context)
    if not size:
        return plan
    growing = (*plan.request.growing, Growth(PARKED, Place.RAM, fixed=size))
    return plan_of(dataclasses.replace(plan.request, growing=growing), plan.slots, plan.context, plan.seats)


def unasked_parking(left: int, usable: int, state: StateBytes, context: int) -> int:
    """Bytes, where nobody said how many, for texts of up to `context` tokens; 0 where a short one has no room."""
    size = min(usable // RAM_PART, left // LEFT_PART, MOST_CONVERSATIONS * state.at(context), MOST_BYTES)
    return size if size >= state.at(min(context, LEAST_CONTEXT)) else 0


def planned_parking(plan: MemoryPlan) -> int:
    """Bytes for them of a plan."""
    return sum(part.size for part in plan.parts if part.name == PARKED)


def asked_on_cpu(asked_gib: float | None, memory: MemoryFacts) -> int:
    """See `asked_parking`. Some systems do not say how much memory they have."""
    return asked_parking(asked_gib, memory.usable if memory.total else sys.maxsize)


def parking_on_cpu(
    asked_gib: float | None, memory: MemoryFacts, taken: int | None, state: StateBytes, context: int
) -> ParkingSpace:
    """Where states stay what they are when they are parked, with the room that they have to grow.

    memory: as it is beside the weights; taken: of it for slots and checkpoints; None: experts have all the rest.
    """
    limit = asked_on_cpu(asked_gib, memory)
    if asked_gib is None and taken is not None:
        limit = unasked_parking(memory.usable - taken, memory.usable, state, context)
    return ParkingSpace(limit, state.at(CELL_STEP), GROWN * state.per_token)
