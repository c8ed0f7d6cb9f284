"""The memory plans of a model's stages together: every stage has its own card, all share slots, context, main memory.

Pure arithmetic over bytes; knows no device, no file and no tensor. What one stage does with its card is decided in
`placement.py`, which layers it has in `split_plan.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from strata.engine.memory_plan import GIB, Budget, MemoryPlan, Place, PlanRequest, TableRoom
from strata.engine.placement import next_smaller, plan_in_memory
from strata.engine.plan_parts import plan_of
from strata.models.device.layer_split import LayerSplit
from strata.models.device.sizes import CELL_ROWS, cells_of

_AMPLE = 1 << 60  # bytes: a stage decides about its card as if main memory had no end


@dataclass(frozen=True)
class StagePlans:
    """What goes where, stage by stage. `refusal` says in a sentence why it does not fit, None if it does."""

    split: LayerSplit
    plans: tuple[MemoryPlan, ...]  # of the same slots and context; what they take of main memory adds up
    refusal: str | None = None

    @property
    def slots(self) -> int:
        """Of every stage."""
        return self.plans[0].slots

    @property
    def context(self) -> int:
        """Tokens of a slot, of every stage."""
        return self.plans[0].context

    @property
    def has_tiers(self) -> bool:
        """Whether a stage has experts in main memory."""
        return any(plan.seats is not None for plan in self.plans)

    @property
    def seat_share(self) -> float:
        """How much of all experts the cards hold, 0 to 1."""
        routed = sum(plan.request.routed_bytes for plan in self.plans)
        return sum(map(held_bytes, self.plans)) / routed if routed else 1.0

    @classmethod
    def single(cls, plan: MemoryPlan, layers: int) -> "StagePlans":
        """Of a model that is not split."""
        return cls(LayerSplit(layers), (plan,), plan.refusal)


def held_bytes(plan: MemoryPlan) -> int:
    """Of the experts, on the card."""
    return plan.request.routed_bytes if plan.seats is None else plan.seats


def plan_stages(split: LayerSplit, requests: Sequence[PlanRequest]) -> StagePlans:
    """The plans of all stages, whose requests say the same of slots, context and main memory.

    Slots and context are the least that any of them has. Where main memory is short of what all take there, slots that
    nobody asked for are given up first, then n-gram tables stay in files, then as the settings say experts.
    """
    if (problem := _table_problem(requests)) is not None:
        return StagePlans(split, tuple(map(plan_in_memory, requests)), problem)
    usable = requests[0].budgets.ram.usable
    plans: tuple[MemoryPlan, ...] = ()
    for tried in _ways(requests):
        cards = [plan_in_memory(_with_ram(replace(each, is_filed=False), _AMPLE)) for each in tried]
        if (problem := _card_refusal(split, cards)) is not None:
            return StagePlans(split, _shared(_as_asked(cards, tried), usable), problem)
        plans = _together(tried, cards, usable)
        if left_in_ram(plans, usable) >= 0:
            return StagePlans(split, _shared(plans, usable))
    return StagePlans(split, _shared(plans, usable), _ram_refusal(split, plans, usable))


def left_in_ram(plans: Sequence[MemoryPlan], usable: int) -> int:
    """Bytes of main memory beside what all stages take."""
    return usable - sum(plan.used(Place.RAM) for plan in plans)


def alike(found: StagePlans, plans: Sequence[MemoryPlan]) -> StagePlans:
    """These plans of the same stages, with the slots and the context of the least."""
    slots, context = min(plan.slots for plan in plans), min(plan.context for plan in plans)
    return replace(found, plans=tuple(_resized(plan, slots, context) for plan in plans))


def smaller_plans(found: StagePlans, number: int) -> StagePlans | None:
    """What to try after a stage's card ran out of memory: fewer seats there, or else fewer slots, then less context, on
    all of them; None: there is nothing to give up."""
    smaller = next_smaller(found.plans[number])
    if smaller is None:
        return None
    return alike(found, [smaller if each == number else plan for each, plan in enumerate(found.plans)])


def _resized(plan: MemoryPlan, slots: int, context: int) -> MemoryPlan:
    if (plan.slots, plan.context) == (slots, context):
        return plan
    return plan_of(plan.request, slots, context, plan.seats)


def stage_words(split: LayerSplit, number: int) -> str:
    """A stage of several, and its layers."""
    run = split.runs[number]
    layers = f"layer {run.start}" if len(run) == 1 else f"layers {run.start} to {run.stop - 1}"
    return f"stage {number + 1} of {split.stages} ({layers})"


def _ways(requests: Sequence[PlanRequest]) -> Iterator[list[PlanRequest]]:
    """What lies in main memory, less and less of it, as far as files and settings allow."""
    tried = [replace(each, is_filed=False) for each in requests]
    yield tried
    large = [each for each in requests if each.large_table_bytes]
    if large and all(each.tables is TableRoom.AUTO and each.table_problem is None for each in large):
        tried = [replace(each, tables=TableRoom.FILE) for each in tried]
        yield tried
    if any(each.is_filed for each in requests) and any(each.experts for each in requests):
        yield [replace(each, is_exclusive=True) for each in tried]
        if all(each.filing_problem is None for each in requests):
            yield [each.left_in_files() for each in tried]


def _together(requests: Sequence[PlanRequest], cards: Sequence[MemoryPlan], usable: int) -> tuple[MemoryPlan, ...]:
    """All with the slots and the context of the least, each with the least that it takes of main memory.

    cards: what each card would have by itself.
    """

    def planned(slots: int | None, context: int) -> tuple[MemoryPlan, ...]:
        found = (plan_in_memory(replace(card.request, asked_context=context, asked_slots=slots)) for card in cards)
        return tuple(
            plan_of(_with_ram(request, 0), plan.slots, context, plan.seats)
            for request, plan in zip(requests, found, strict=True)
        )

    first = requests[0]
    context = min(plan.context for plan in cards)
    slots = first.asked_slots or min(plan.slots for plan in planned(None, context))
    plans = planned(slots, context)
    while first.asked_slots is None and slots > 1 and left_in_ram(plans, usable) < 0:
        slots -= 1
        plans = planned(slots, context)
    shorter = _fitting_context(requests, context, slots, left_in_ram(plans, usable))
    return plans if shorter == context or first.asked_context is not None else planned(slots, shorter)


def _fitting_context(requests: Sequence[PlanRequest], context: int, slots: int, left: int) -> int:
    """At most this one, with which main memory is not short of anything, if its cells can do that."""
    ram = (each for request in requests for each in request.growing if each.place is Place.RAM)
    a_token = slots * sum(each.per_token for each in ram)
    if left >= 0 or not a_token:
        return context
    fitting = int(cells_of(context) + left / a_token) // CELL_ROWS * CELL_ROWS
    return max(requests[0].least_context, min(context, fitting))


def _shared(plans: Sequence[MemoryPlan], usable: int) -> tuple[MemoryPlan, ...]:
    """Each with a part of main memory of its own: what it takes, and of what is left as much as it has of the experts.

    Experts that may stay in files fill theirs. What is missing is missing to all in the same way.
    """
    left = left_in_ram(plans, usable)
    routed = [plan.request.routed_bytes for plan in plans]
    found = []
    for plan, own in zip(plans, routed, strict=True):
        part = left * own // sum(routed) if any(routed) else left // len(plans)
        request = _with_ram(plan.request, plan.used(Place.RAM) + part)
        found.append(plan_of(request, plan.slots, plan.context, plan.seats))
    return tuple(found)


def _as_asked(plans: Sequence[MemoryPlan], requests: Sequence[PlanRequest]) -> tuple[MemoryPlan, ...]:
    return tuple(replace(plan, request=request) for plan, request in zip(plans, requests, strict=True))


def _with_ram(request: PlanRequest, size: int) -> PlanRequest:
    """The same where a plan may fill so many bytes of main memory."""
    ram = request.budgets.ram
    given = Budget(ram.total, size, None if ram.limit is None else size)
    return replace(request, budgets=replace(request.budgets, ram=given))


def _table_problem(requests: Sequence[PlanRequest]) -> str | None:
    problems = (each.table_problem for each in requests if each.reads_tables and each.large_table_bytes)
    found = next((problem for problem in problems if problem is not None), None)
    return None if found is None else f"setting ngram_table: file does not work: {found}; memory does"


def _card_refusal(split: LayerSplit, cards: Sequence[MemoryPlan]) -> str | None:
    """Which stage's card is too small, and why."""
    for number, plan in enumerate(cards):
        if plan.refusal is not None:
            return f"{stage_words(split, number)}: {plan.refusal}"
    return None


def _ram_refusal(split: LayerSplit, plans: Sequence[MemoryPlan], usable: int) -> str:
    """Main memory is too small for what all stages have there."""
    sizes: dict[str, int] = {}
    for part in (part for plan in plans for part in plan.parts if part.place is Place.RAM):
        sizes[part.name] = sizes.get(part.name, 0) + part.size
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in sizes.items())
    return (
        f"this model does not fit on {split.stages} stages with main memory beside them: all together need "
        f"{sum(sizes.values()) / GIB:.1f} GiB of it ({parts}), of which {usable / GIB:.1f} GiB may be used: "
        f"{_what_would_fit(plans, usable)}"
    )


def _what_would_fit(plans: Sequence[MemoryPlan], usable: int) -> str:
    """No expert in both memories, experts in files, or more memory."""
    requests = [plan.request for plan in plans]

    def fits(changed: Sequence[PlanRequest]) -> bool:
        tried = (
            plan_of(request, plan.slots, plan.context, plan.seats) for request, plan in zip(changed, plans, strict=True)
        )
        return left_in_ram(list(tried), usable) >= 0

    if not requests[0].is_exclusive and fits([replace(each, is_exclusive=True) for each in requests]):
        return "with `--resident`, which keeps no expert in both, it fits"
    can_be_filed = all(each.filing_problem is None for each in requests)
    if can_be_filed and not requests[0].is_filed and fits([each.left_in_files() for each in requests]):
        return "with `--mmap`, which leaves experts in the model's files until they are asked for, it fits"
    return "more of it must be free, or ram_gib larger"
