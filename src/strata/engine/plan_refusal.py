"""Why a memory plan does not fit, in a sentence with numbers and with what would. Pure; plans nothing that is used."""

from dataclasses import replace

from strata.engine.memory_plan import CHUNKS, GIB, LEAST_CONTEXT, MemoryPlan, Place, PlanRequest, TableRoom
from strata.engine.plan_parts import EXPERTS, longest_context, most_slots, plan_of, room, total
from strata.engine.tier_placement import plan_tiers


def refusal_of(plan: MemoryPlan) -> str | None:
    """The sentence, without a full stop; None if the plan fits."""
    request = plan.request
    if plan.left(Place.CARD) < 0:
        if fits_with_less(plan):
            return _asked_refusal(plan) + _chunk_words(plan)
        if request.asked_cache is not None and plan_of(request, 1, plan.context, 0).left(Place.CARD) >= 0:
            return _cache_refusal(plan) + _chunk_words(plan)
        return _card_refusal(_least(plan)) + _chunk_words(_least(plan))
    if plan.left(Place.RAM) < 0:
        return (_ram_refusal(plan) if plan.seats is None else _tiers_refusal(plan)) + _table_words(plan)
    return None


def lacks_ram(plan: MemoryPlan) -> bool:
    """Whether main memory alone is too small for the plan."""
    return plan.left(Place.CARD) >= 0 > plan.left(Place.RAM)


def fits_with_less(plan: MemoryPlan) -> bool:
    """Whether the card has room for one short conversation beside the plan's experts."""
    return _least(plan).left(Place.CARD) >= 0


def _least(plan: MemoryPlan) -> MemoryPlan:
    request = plan.request
    return plan_of(request, 1, min(request.least_context, LEAST_CONTEXT), plan.seats)


def _card_refusal(plan: MemoryPlan) -> str:
    """The card is too small for the weights, whatever was asked for."""
    request = plan.request
    card, reserve = request.budgets.card.usable, request.reserve
    without_experts = "" if plan.seats is None else "even with all experts in main memory, and "
    return (
        f"this model does not fit on {request.budgets.card_name}: {without_experts}with one conversation of "
        f"{plan.context:,} tokens, it takes {plan.used(Place.CARD) / GIB:.1f} GiB ({_in_words(plan, Place.CARD)}), and "
        f"of {card / GIB:.1f} GiB that may be used {reserve / GIB:.1f} GiB stay in reserve; a card with "
        f"{(plan.used(Place.CARD) + reserve) / GIB:.1f} GiB free would hold it"
    )


def _asked_refusal(plan: MemoryPlan) -> str:
    """The weights fit, the slots or the context that were asked for do not."""
    request = plan.request
    left = room(request, Place.CARD, plan.seats)
    growing = [each for each in request.growing if each.place is Place.CARD]
    slot = total(growing, 1, plan.context) - total(growing, 0, plan.context)
    fitting = min(
        most_slots(request, plan.context, room(request, each, plan.seats), each, plan.slots) for each in Place
    )
    if request.asked_slots is not None and fitting >= 1:
        return (
            f"setting slots: {plan.slots} does not work: a conversation of {plan.context:,} tokens takes "
            f"{slot / GIB:.2f} GiB of the card and {left / GIB:.1f} GiB are left beside the "
            f"weights, so {fitting} fit; a smaller context makes room for more"
        )
    longest = longest_context(request, plan.slots, left)
    shortest = f"{longest:,} tokens fit" if longest else "not even a short one fits: ask for fewer slots"
    return (
        f"setting context: {plan.context:,} does not work: {_words(plan.slots)} of it take "
        f"{slot * plan.slots / GIB:.2f} GiB of the card and {left / GIB:.1f} GiB are left beside "
        f"the weights; {shortest}"
    )


def _cache_refusal(plan: MemoryPlan) -> str:
    """Everything but the seats that were asked for fits."""
    request = plan.request
    assert request.asked_cache is not None
    most = plan_of(request, plan.slots, plan.context, 0).left(Place.CARD)
    return (
        f"setting cache_gib: {request.asked_cache / GIB:g} does not work: beside everything else and "
        f"{_words(plan.slots)} of {plan.context:,} tokens {max(0, most) / GIB:.1f} GiB of {request.budgets.card_name} "
        "are left for experts; that much or less does, and leaving it out takes what is left"
    )


def _ram_refusal(plan: MemoryPlan) -> str:
    """All experts lie on the card, and main memory is too small for what lies there."""
    usable = plan.request.budgets.ram.usable
    return (
        f"this model needs {plan.used(Place.RAM) / GIB:.1f} GiB of main memory beside the card "
        f"({_in_words(plan, Place.RAM)}), and {usable / GIB:.1f} GiB may be used: "
        "more of it must be free, or ram_gib larger"
    )


def _tiers_refusal(plan: MemoryPlan) -> str:
    """The card holds a part of the experts, and main memory is too small for the others."""
    request = plan.request
    if request.is_filed:
        return _filed_refusal(plan)
    return (
        f"this model does not fit on {request.budgets.card_name} with main memory beside it: the card would hold "
        f"{(plan.seats or 0) / GIB:.1f} of {request.routed_bytes / GIB:.1f} GiB of experts, and main memory needs "
        f"{plan.used(Place.RAM) / GIB:.1f} GiB ({_in_words(plan, Place.RAM)}), of which "
        f"{request.budgets.ram.usable / GIB:.1f} GiB may be used: {_what_would_fit(plan)}"
    )


def _filed_refusal(plan: MemoryPlan) -> str:
    """Main memory is too small even where experts stay in the model's files."""
    request = plan.request
    return (
        f"this model does not fit on {request.budgets.card_name} with main memory beside it, even if experts stay in "
        f"its files: main memory needs {plan.used(Place.RAM) / GIB:.1f} GiB ({_in_words(plan, Place.RAM)}), of which "
        f"{request.budgets.ram.usable / GIB:.1f} GiB may be used; experts that are read take what the "
        f"{request.most_asked} take that a window may ask of one layer: more of it must be free, or ram_gib larger"
    )


def _what_would_fit(plan: MemoryPlan) -> str:
    """Exclusive placement, experts in files, fewer bits, or several of them."""
    request = plan.request
    apart = _tried(plan, replace(request, is_exclusive=True))
    if not request.is_exclusive and not _is_short(apart):
        return "with `--resident`, which keeps no expert in both, it fits"
    bits = _fitting_bits(plan, "") if request.is_exclusive else _fitting_bits(apart, "`--resident` and ")
    if request.filing_problem is not None or _is_short(_tried(plan, request.left_in_files())):
        return bits
    return f"with `--mmap`, which leaves experts in the model's files until they are asked for, it fits; {bits}"


def _tried(plan: MemoryPlan, request: PlanRequest) -> MemoryPlan:
    """The plan as another request would have it."""
    if request.asked_cache is None:
        return plan_tiers(request, plan.slots)
    return plan_of(request, plan.slots, plan.context, plan.seats)


def _is_short(plan: MemoryPlan) -> bool:
    return any(plan.left(place) < 0 for place in Place)


def _fitting_bits(plan: MemoryPlan, beside: str) -> str:
    """Of a weight of experts, so that they fit in tiers as planned, or on the card whole."""
    request = plan.request
    whole = plan_of(request, 1, min(request.least_context, LEAST_CONTEXT), None)
    most = request.routed_bytes + max(plan.left(Place.RAM), whole.left(Place.CARD))
    in_ram = sum(part.size for part in plan.parts if part.name == EXPERTS)
    if request.routed_weights and most > 0 and plan.left(Place.RAM) + in_ram >= 0:
        return f"with {beside}experts of at most {most * 8 / request.routed_weights:.1f} bits a weight it would fit"
    return "more of it must be free, or ram_gib larger"


def _chunk_words(plan: MemoryPlan) -> str:
    """That the card would do without what prompts in chunks take, where that is so."""
    request = plan.request
    growing = tuple(each for each in request.growing if each.name != CHUNKS)
    windows = replace(request, growing=growing, chunk_rows=0, ring_bytes=0)
    less = plan_of(windows, plan.slots, plan.context, plan.seats)
    if not request.chunk_rows or less.left(Place.CARD) < 0:
        return ""
    return (
        f"; setting chunk_rows: {request.chunk_rows:,} rows of a prompt at once take "
        f"{(plan.used(Place.CARD) - less.used(Place.CARD)) / GIB:.1f} GiB of it: fewer may fit, and with gpu_reads "
        "windows, which reads prompts more slowly, it fits"
    )


def _table_words(plan: MemoryPlan) -> str:
    """That n-gram tables in main memory could stay in their files, or why not."""
    request = plan.request
    size, problem = request.large_table_bytes, request.table_problem
    if size and request.tables is TableRoom.MEMORY and problem is None:
        return f"; with ngram_table auto or file the n-gram tables, {size / GIB:.1f} GiB, stay in their files"
    if size and request.tables is TableRoom.AUTO and problem is not None:
        return f"; the n-gram tables cannot stay in their files: {problem}"
    return ""


def _words(slots: int) -> str:
    return "one conversation" if slots == 1 else f"{slots} conversations"


def _in_words(plan: MemoryPlan, place: Place) -> str:
    return ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in plan.parts if part.place is place)
