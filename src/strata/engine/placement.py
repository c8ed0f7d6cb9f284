"""What goes where on one card and in main memory, and how many conversations of what length fit beside it.

Pure arithmetic over bytes; knows no device, no file and no tensor. Today every expert lies on the card: a model for
which it is too small is refused, with the plan that did not fit.
"""

from collections.abc import Iterable
from dataclasses import replace

from strata.engine.memory_plan import (
    CHECKPOINTS_A_SLOT,
    GIB,
    LEAST_CONTEXT,
    Growth,
    MemoryPlan,
    Place,
    PlannedPart,
    PlanRequest,
)
from strata.errors import SettingsError
from strata.models.device.sizes import CELL_ROWS
from strata.models.needs import PROGRAM_BYTES, Part, StateBytes

MOST_SLOTS_UNASKED = 4


def full_slot_bytes(state: StateBytes, context: int) -> int:
    """What a slot takes whose conversation fills the context, with all its checkpoints."""
    return state.at(context) + CHECKPOINTS_A_SLOT * state.fixed


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
    """The largest context up to the model's own, then as many slots as fit up to 4; or both as asked.

    A plan that does not fit shows the least that was tried, with its refusal.
    """
    slots = request.asked_slots or 1
    context = request.asked_context or min(request.longest_context, _longest_context(request, slots))
    context = max(context, request.least_context)
    if request.asked_slots is None:
        slots = max(1, min(MOST_SLOTS_UNASKED, _most_slots(request, context)))
    plan = MemoryPlan(request, slots, context, _parts(request, slots, context))
    return replace(plan, refusal=_refusal(plan))


def recheck(plan: MemoryPlan, free_now: int) -> MemoryPlan:
    """The plan after the weights were written, when `free_now` bytes of the card are left: the same or a smaller one.

    It is refused if not even one short conversation fits any more.
    """
    card = plan.request.budgets.card
    seen = replace(card, free=min(card.free, free_now + sum(part.size for part in _weight_parts(plan.request, True))))
    budgets = replace(plan.request.budgets, card=seen)
    checked = MemoryPlan(replace(plan.request, budgets=budgets), plan.slots, plan.context, plan.parts)
    return checked if checked.left(Place.CARD) >= 0 else plan_memory(checked.request)


def next_smaller(plan: MemoryPlan) -> MemoryPlan | None:
    """The plan to try after the card ran out of memory: half of the slots, then half of the context, if not asked for.

    None: there is nothing to give up.
    """
    request, slots, context = plan.request, plan.slots, plan.context
    if request.asked_slots is None and slots > 1:
        slots //= 2
    elif context > request.least_context:
        context = max(request.least_context, context // 2 // CELL_ROWS * CELL_ROWS)
    else:
        return None
    return MemoryPlan(request, slots, context, _parts(request, slots, context))


def _weight_parts(request: PlanRequest, on_card: bool) -> list[PlannedPart]:
    """The weights of one place."""
    parts = []
    for part, size in request.weights.items():
        is_large_table = part is Part.NGRAM and size > request.most_table_bytes
        if size and is_large_table is not on_card:
            parts.append(PlannedPart(part.value, Place.CARD if on_card else Place.RAM, size))
    return parts


def _parts(request: PlanRequest, slots: int, context: int) -> tuple[PlannedPart, ...]:
    weights = _weight_parts(request, True) + _weight_parts(request, False)
    grown = [PlannedPart(each.name, each.place, each.at(slots, context)) for each in request.growing]
    program = PlannedPart("program", Place.RAM, PROGRAM_BYTES)
    return (*weights, *(part for part in grown if part.size), program)


def _room(request: PlanRequest, place: Place) -> int:
    """Bytes of a place that are left for what grows."""
    empty = MemoryPlan(request, 0, 0, _parts(request, 0, 0))
    return empty.left(place)


def _longest_context(request: PlanRequest, slots: int) -> int:
    """The most tokens of context, a multiple of CELL_ROWS, that `slots` conversations can have."""
    growing = [each for each in request.growing if each.place is Place.CARD]
    a_token = sum(each.per_position + each.per_token * slots for each in growing)
    room = _room(request, Place.CARD) - slots * sum(each.per_slot for each in growing)
    if a_token <= 0:
        return request.longest_context
    return max(0, int((room - len(growing)) / a_token)) // CELL_ROWS * CELL_ROWS


def _most_slots(request: PlanRequest, context: int) -> int:
    """How many conversations of this context fit into both places."""

    def fitting(place: Place) -> int:
        growing = [each for each in request.growing if each.place is place]
        none, one = _total(growing, 0, context), _total(growing, 1, context)
        room = _room(request, place) - none + sum(each.fixed for each in growing)
        return max(0, room) // (one - none) if one > none else MOST_SLOTS_UNASKED

    return min(fitting(Place.CARD), fitting(Place.RAM))


def _total(growing: Iterable[Growth], slots: int, context: int) -> int:
    return sum(each.at(slots, context) for each in growing)


def _refusal(plan: MemoryPlan) -> str | None:
    """Why the plan does not fit, with numbers and with what would."""
    request = plan.request
    if plan.left(Place.CARD) < 0:
        shortest = min(request.least_context, LEAST_CONTEXT)
        smallest = MemoryPlan(request, 1, shortest, _parts(request, 1, shortest))
        return _model_refusal(smallest) if smallest.left(Place.CARD) < 0 else _asked_refusal(plan)
    if plan.left(Place.RAM) < 0:
        usable = request.budgets.ram.usable
        return (
            f"this model needs {plan.used(Place.RAM) / GIB:.1f} GiB of main memory beside the card "
            f"({_in_words(plan, Place.RAM)}), and {usable / GIB:.1f} GiB may be used: "
            "more of it must be free, or ram_gib larger"
        )
    return None


def _model_refusal(plan: MemoryPlan) -> str:
    """The card is too small for the weights, whatever was asked for."""
    request = plan.request
    card, reserve = request.budgets.card.usable, request.reserve
    sentence = (
        f"this model does not fit on {request.budgets.card_name}: with one conversation of {plan.context:,} tokens it "
        f"takes {plan.used(Place.CARD) / GIB:.1f} GiB ({_in_words(plan, Place.CARD)}), and of {card / GIB:.1f} GiB "
        f"that may be used {reserve / GIB:.1f} GiB stay in reserve"
    )
    room = request.weights.get(Part.ROUTED, 0) + plan.left(Place.CARD)
    if request.routed_weights and room > 0:
        return f"{sentence}; with experts of at most {room * 8 / request.routed_weights:.1f} bits a weight it would fit"
    return f"{sentence}; a card with {(plan.used(Place.CARD) + reserve) / GIB:.1f} GiB free would hold it"


def _asked_refusal(plan: MemoryPlan) -> str:
    """The weights fit, the slots or the context that were asked for do not."""
    request = plan.request
    growing = [each for each in request.growing if each.place is Place.CARD]
    slot = _total(growing, 1, plan.context) - _total(growing, 0, plan.context)
    fitting, longest = _most_slots(request, plan.context), _longest_context(request, plan.slots)
    if request.asked_slots is not None and fitting >= 1:
        return (
            f"setting slots: {plan.slots} does not work: a conversation of {plan.context:,} tokens takes "
            f"{slot / GIB:.2f} GiB of the card and {_room(request, Place.CARD) / GIB:.1f} GiB are left beside the "
            f"weights, so {fitting} fit; a smaller context makes room for more"
        )
    shortest = f"{longest:,} tokens fit" if longest else "not even a short one fits: ask for fewer slots"
    return (
        f"setting context: {plan.context:,} does not work: {_words(plan.slots)} of it take "
        f"{slot * plan.slots / GIB:.2f} GiB of the card and {_room(request, Place.CARD) / GIB:.1f} GiB are left beside "
        f"the weights; {shortest}"
    )


def _words(slots: int) -> str:
    return "one conversation" if slots == 1 else f"{slots} conversations"


def _in_words(plan: MemoryPlan, place: Place) -> str:
    return ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in plan.parts if part.place is place)
