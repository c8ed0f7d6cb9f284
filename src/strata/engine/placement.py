"""What goes where on one card and in main memory, and how many conversations of what length fit beside it.

Pure arithmetic over bytes; knows no device, no file and no tensor. All experts lie on the card if that leaves room for
a conversation; otherwise `tier_placement.py` decides. What does not fit either way is refused, with the plan that did
not.
"""

from dataclasses import replace

from strata.engine.memory_plan import GIB, MARKS_A_SLOT, MemoryPlan, Place, PlanRequest, TableRoom
from strata.engine.plan_parts import longest_context, most_slots, plan_of, room, weight_parts
from strata.engine.plan_refusal import fits_with_less, lacks_ram, refusal_of
from strata.engine.tier_placement import fewer_seats, plan_tiers
from strata.errors import SettingsError
from strata.models.device.sizes import CELL_ROWS
from strata.models.needs import StateBytes

MOST_SLOTS_UNASKED = 4


def full_slot_bytes(state: StateBytes, context: int, checkpoints: int) -> int:
    """What a slot takes in main memory whose conversation fills the context, with `checkpoints` bytes of them."""
    return state.at(context) + MARKS_A_SLOT * state.fixed + checkpoints


def slots_that_fit(asked: int | None, slot_bytes: int, free_bytes: int, context: int) -> int:
    """The number of slots: as asked, or as many as fit up to 4. Raises SettingsError if those asked for do not fit.

    One slot is always there, because few conversations fill the context.
    """
    fitting = free_bytes // slot_bytes
    if asked is None:
        return max(1, min(MOST_SLOTS_UNASKED, fitting))
    if asked > max(1, fitting):
        raise SettingsError(
            f"setting slots: {asked} does not work: a conversation of {context:,} tokens takes "
            f"{slot_bytes / GIB:.2f} GiB and {free_bytes / GIB:.1f} GiB are free, so {max(1, fitting)} fit; "
            "a smaller context makes room for more"
        )
    return asked


def plan_memory(request: PlanRequest) -> MemoryPlan:
    """All experts on the card, or where they or a cache that was asked for leave no room for that, in tiers.

    Where experts may stay in files they do only if main memory has no room for them, not even if none lies in both.
    Before that n-gram tables stay in their files, of which a window reads a few rows. A plan that does not fit shows
    the least that was tried, with its refusal.
    """
    if request.reads_tables and request.table_problem is not None:
        refusal = f"setting ngram_table: file does not work: {request.table_problem}; memory does"
        return replace(_plan_experts(request), refusal=refusal)
    may_stay = request.tables is TableRoom.AUTO and request.large_table_bytes and request.table_problem is None
    if may_stay and lacks_ram(plan_in_memory(replace(request, is_filed=False))):
        request = replace(request, tables=TableRoom.FILE)
    return _plan_experts(request)


def _plan_experts(request: PlanRequest) -> MemoryPlan:
    in_memory = plan_in_memory(replace(request, is_filed=False))
    if not request.is_filed or not request.experts or not lacks_ram(in_memory):
        return in_memory
    apart = plan_in_memory(replace(request, is_filed=False, is_exclusive=True))
    if apart.refusal is None:
        return apart
    if request.filing_problem is not None:
        return replace(apart, refusal=f"{apart.refusal}; `--mmap` changes nothing: {request.filing_problem}")
    return plan_in_memory(request.left_in_files())


def plan_in_memory(request: PlanRequest) -> MemoryPlan:
    """All experts on the card, or in tiers; what does not stay in files is as the request says."""
    if request.experts and request.asked_cache is not None and request.asked_cache < request.routed_bytes:
        return _refused(plan_with(request, request.whole_experts(request.asked_cache)))
    whole = _refused(plan_with(request, None))
    if whole.refusal is None or not request.experts:
        return whole
    if request.asked_cache is not None:
        return whole
    tiered = _refused(plan_tiers(request, MOST_SLOTS_UNASKED))
    return whole if tiered.refusal is not None and fits_with_less(whole) else tiered


def plan_with(request: PlanRequest, seats: int | None) -> MemoryPlan:
    """The largest context up to the model's own beside these seats, then as many slots as fit up to 4; or as asked."""
    slots = request.asked_slots or 1
    longest = min(longest_context(request, slots, room(request, each, seats), each) for each in Place)
    context = request.asked_context or min(request.longest_context, longest)
    context = max(context, request.least_context)
    if request.asked_slots is None:
        fitting = (most_slots(request, context, room(request, each, seats), each, MOST_SLOTS_UNASKED) for each in Place)
        slots = max(1, min(MOST_SLOTS_UNASKED, *fitting))
    return plan_of(request, slots, context, seats)


def recheck(plan: MemoryPlan, free_now: int) -> MemoryPlan:
    """The plan after the weights were written, when `free_now` bytes of the card are left: the same or a smaller one.

    See `plan_again`.
    """
    return plan_again(plan, free_now + sum(part.size for part in weight_parts(plan.request, Place.CARD, plan.seats)))


def plan_again(plan: MemoryPlan, free: int) -> MemoryPlan:
    """The plan when no more than `free` bytes of the card can be had for all of it: the same or a smaller one.

    Seats give way before slots and context; they fill what there is, so that half of the reserve may be gone before any
    has to, by what the allocator rounds up. It is refused if not even one short conversation fits any more.
    """
    card = plan.request.budgets.card
    seen = replace(card, free=min(card.free, free))
    request = replace(plan.request, budgets=replace(plan.request.budgets, card=seen))
    checked = replace(plan, request=request)
    if checked.left(Place.CARD) >= (-request.reserve // 2 if plan.seats else 0):
        return checked
    if plan.seats is None:
        return _refused(_shrunk(checked, None))
    fewer = fewer_seats(checked, max(0, plan.seats + checked.left(Place.CARD)))
    if fewer is None:
        return _refused(_shrunk(checked, plan.seats))
    return fewer if fewer.left(Place.CARD) >= 0 else _refused(_shrunk(checked, 0))


def _shrunk(plan: MemoryPlan, seats: int | None) -> MemoryPlan:
    """The plan with as many of its slots as fit beside these seats, then with as much of its context; or as asked."""
    request, slots, context = plan.request, plan.slots, plan.context
    if request.asked_slots is None:
        fitting = (most_slots(request, context, room(request, each, seats), each, slots) for each in Place)
        slots = max(1, min(slots, *fitting))
    if request.asked_context is None:
        longest = longest_context(request, slots, room(request, Place.CARD, seats))
        context = max(request.least_context, min(context, longest))
    return plan_of(request, slots, context, seats)


def next_smaller(plan: MemoryPlan) -> MemoryPlan | None:
    """The plan to try after the card ran out of memory: a quarter of the seats less; then half of the slots, then half
    of the context, as far as nobody asked for them. None: there is nothing to give up.
    """
    request, slots, context = plan.request, plan.slots, plan.context
    if plan.seats:
        fewer = fewer_seats(plan, max(0, min(plan.seats - GIB, plan.seats * 3 // 4)))
        if fewer is not None:
            return fewer
    if request.asked_slots is None and slots > 1:
        slots //= 2
    elif context > request.least_context:
        context = max(request.least_context, context // 2 // CELL_ROWS * CELL_ROWS)
    else:
        return None
    return plan_of(request, slots, context, plan.seats)


def _refused(plan: MemoryPlan) -> MemoryPlan:
    """The plan with its refusal, if it does not fit."""
    return replace(plan, refusal=refusal_of(plan))
