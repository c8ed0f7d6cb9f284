"""How much main memory checkpoints of conversations may take, and how many points that is.

Pure arithmetic over bytes. Two of each slot have room in any case: its last point and the start of its reply.
"""

import sys

from strata.engine.memory_plan import GIB, Growth, MemoryPlan, Place
from strata.engine.placement import MOST_SLOTS_UNASKED
from strata.engine.points import PointBudget
from strata.errors import SettingsError
from strata.hardware import MemoryFacts
from strata.models.needs import StateBytes
from strata.settings import EngineSettings

CHECKPOINTS = "checkpoints"
LEAST_A_SLOT = 2
MORE_A_SLOT = 7  # unasked, where memory is plentiful
RAM_PART = 32  # unasked, these are at most one part in so many of what may be used
MOST_POINTS_A_SLOT = 64  # where they are small; every one of them is looked at for each new one


def checkpoint_growth(state_bytes: int, asked_gib: float | None, usable: int, asked_slots: int | None) -> Growth:
    """The part of a plan for them, in main memory of which `usable` bytes may be used.

    state_bytes: of a slot's state, what does not grow; asked_gib: beside those that every slot has, None: decided here.
    Raises SettingsError for more than there is.
    """
    least = LEAST_A_SLOT * state_bytes
    if asked_gib is None:
        of_slot = usable // RAM_PART // (asked_slots or MOST_SLOTS_UNASKED)
        more = min(MORE_A_SLOT, of_slot // state_bytes) if state_bytes else 0
        return Growth(CHECKPOINTS, Place.RAM, per_slot=least + more * state_bytes)
    if asked_gib * GIB > usable:
        raise SettingsError(
            f"setting checkpoint_gib: {asked_gib:g} does not work: {usable / GIB:.1f} GiB of main memory may be used "
            "in all; a smaller number does, and leaving it out takes a small part"
        )
    return Growth(CHECKPOINTS, Place.RAM, fixed=int(asked_gib * GIB), per_slot=least)


def checkpoints_on_cpu(state: StateBytes, settings: EngineSettings, memory: MemoryFacts) -> Growth:
    """The same where there is no card. Some systems do not say how much memory they have."""
    usable = memory.usable if memory.total else sys.maxsize
    return checkpoint_growth(state.fixed, settings.checkpoint_gib, usable, settings.slots)


def planned_checkpoints(plan: MemoryPlan) -> int:
    """Bytes for them of a plan."""
    return sum(part.size for part in plan.parts if part.name == CHECKPOINTS)


def point_budget(size: int, state_bytes: int, slots: int) -> PointBudget:
    """Points that have room in `size` bytes beside the starts of replies; one of each slot at least."""
    most = MOST_POINTS_A_SLOT * slots
    points = min(most, size // state_bytes - slots) if state_bytes else most
    return PointBudget(max(slots, points), slots)
