"""Which layers lie on which stage of several, and what goes where on each: from a model's headers and plain numbers.

Reads no weight and not the machine: whoever asks says what every device has. What is decided about one stage is in
`placement.py`, about all of them together in `stage_plans.py`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from strata.engine.device_needs import plan_request, wanted_shapes, with_file_problems, without_spares
from strata.engine.memory_plan import Budgets, Growth, MemoryPlan, Place, PlanRequest, TableRoom
from strata.engine.parked_budget import PARKED, unasked_parking
from strata.engine.part_needs import ModelNeeds
from strata.engine.plan_parts import plan_of
from strata.engine.split_search import Worth, best_cuts
from strata.engine.stage_plans import StagePlans, held_bytes, left_in_ram, plan_stages
from strata.errors import SettingsError
from strata.experts.cache import place_hottest
from strata.models.device.layer_split import LayerSplit
from strata.models.families import family_of
from strata.models.fast.packing import held_bytes_packed
from strata.settings import EngineSettings
from strata.weights.opening import ModelSource

Heat = NDArray[np.floating]  # [layers with experts, experts]: how often a profile saw each


def plan_split(
    source: ModelSource,
    settings: EngineSettings,
    budgets: Sequence[Budgets],
    cuts: Sequence[int] | None = None,
    heat: Heat | None = None,
) -> StagePlans:
    """The plans of a model on as many stages as there are budgets, each with all of main memory in its own.

    cuts: the first layers of all stages but the first one; None: of the split whose cards hold most of the heat,
    without heat most experts, among equals the most even one. heat decides nothing else. Raises SettingsError for a
    split that leaves a stage empty.
    """
    needs = model_needs(source, settings, budgets)
    chosen = LayerSplit.of(needs.layers, tuple(cuts)) if cuts is not None else best_split(needs, budgets, heat)
    found = _plan(needs, chosen, budgets)
    if any(_given_up(found, settings)):
        without = model_needs(source, without_spares(settings), budgets, sets_aside=False)
        less = _plan(without, chosen, budgets)
        if less.refusal is not None or _given_up(less, settings) < _given_up(found, settings):
            found = less
    if found.refusal is not None and cuts is not None:
        return dataclasses.replace(found, refusal=found.refusal + _other_split(needs, budgets, heat))
    return found


def model_needs(
    source: ModelSource, settings: EngineSettings, budgets: Sequence[Budgets], *, sets_aside: bool = True
) -> ModelNeeds:
    """What all layers together ask for. A chunk has as many rows as the least card has room for.

    sets_aside: see `plan_request`.
    """
    family = family_of(source.config)
    config = family.parse_config(source.config)
    shapes = wanted_shapes(family.expected_tensors(config), settings)
    sizes = held_bytes_packed(source, shapes)

    def on(each: Budgets) -> PlanRequest:
        return plan_request(
            source.config, config, sizes, shapes, settings, each, usual_groups=len(budgets), sets_aside=sets_aside
        )

    whole = with_file_problems(min(map(on, budgets), key=lambda request: request.chunk_rows), source, shapes)
    return ModelNeeds(config, settings, sizes, shapes, whole)


def best_split(needs: ModelNeeds, budgets: Sequence[Budgets], heat: Heat | None = None) -> LayerSplit:
    """Every split is tried, for as many conversations as asked for, or as an even split has room for.

    Raises SettingsError for more stages than layers.
    """
    layers, stages = needs.layers, len(budgets)
    if stages > layers:
        raise SettingsError(
            f"setting devices: {stages} of them are more than the {layers} layers of the model: name at most {layers}"
        )
    even = LayerSplit(layers, tuple(layers * number // stages for number in range(1, stages)))
    if stages == 1:
        return even
    usual = plan_stages(even, needs.requests(even, budgets))
    has_room = usual.refusal is None
    slots = needs.settings.slots or (usual.slots if has_room else 1)
    context = needs.settings.context or (usual.context if has_room else needs.whole.least_context)
    cuts = best_cuts(layers, stages, _worth_of(needs, budgets, heat, slots, context))
    return even if cuts is None else LayerSplit(layers, cuts)


def _worth_of(
    needs: ModelNeeds, budgets: Sequence[Budgets], heat: Heat | None, slots: int, context: int
) -> Callable[[int, range], Worth | None]:
    """Of a run on a stage: how much heat its card holds, then how even that and the cards come out."""
    sizes = needs.blobs_by_layer()
    experts = max((each.experts for each in sizes.values()), default=0)
    counted = np.ones((len(sizes), experts)) if heat is None else heat
    request_of = cache(lambda run: needs.request(run, budgets[0]))

    def worth(stage: int, run: range) -> Worth | None:
        request = dataclasses.replace(request_of(run), budgets=budgets[stage], reserve=budgets[stage].reserve)
        plan = _on_card(request, slots, context)
        if plan is None:
            return None
        held, own = held_bytes(plan), [number for number, layer in enumerate(sizes) if layer in run]
        blobs = [sizes[layer].size for layer in sizes if layer in run]
        found = float(counted[own][place_hottest(counted[own], blobs, held)].sum()) if own else 0.0
        return found, -(float(held) ** 2), -(float(plan.used(Place.CARD)) ** 2)

    return worth


def _on_card(request: PlanRequest, slots: int, context: int) -> MemoryPlan | None:
    """A stage's card beside so many conversations; None if it is too small for them without any expert."""
    asked = request.asked_cache
    whole = plan_of(request, slots, context, None)
    if whole.left(Place.CARD) >= 0 and (asked is None or asked >= request.routed_bytes):
        return whole
    without = plan_of(request, slots, context, 0)
    left = without.left(Place.CARD)
    if left < 0 or not request.experts:
        return None
    return plan_of(request, slots, context, request.whole_experts(left if asked is None else min(left, asked)))


def _plan(needs: ModelNeeds, split: LayerSplit, budgets: Sequence[Budgets]) -> StagePlans:
    """With parked conversations, as many as nobody asked for, where nothing had to be given up for main memory."""
    requests, settings = needs.requests(split, budgets), needs.settings
    found = plan_stages(split, requests)
    if settings.parked_gib is not None or any(_given_up(found, settings)):
        return found
    usable, state = budgets[0].ram.usable, needs.state()
    size = unasked_parking(left_in_ram(found.plans, usable), usable, state, found.context)
    parts = [needs.state(run).at(found.context) / state.at(found.context) for run in split.runs]
    more = [
        dataclasses.replace(each, growing=(*each.growing, Growth(PARKED, Place.RAM, fixed=int(size * part))))
        for each, part in zip(requests, parts, strict=True)
    ]
    return plan_stages(split, more) if size else found


def _given_up(found: StagePlans, settings: EngineSettings) -> tuple[bool, bool, bool, bool]:
    """See `device_needs`: what there is no room for, the worst first."""
    requests = [plan.request for plan in found.plans]
    return (
        found.refusal is not None,
        any(each.is_filed for each in requests),
        any(each.is_exclusive for each in requests) and not settings.resident,
        any(each.reads_tables for each in requests) and TableRoom(settings.ngram_table) is TableRoom.AUTO,
    )


def _other_split(needs: ModelNeeds, budgets: Sequence[Budgets], heat: Heat | None) -> str:
    """That another split would fit, if one does."""
    other = best_split(needs, budgets, heat)
    if plan_stages(other, needs.requests(other, budgets)).refusal is not None:
        return ""
    return f"; layer_split {','.join(map(str, other.cuts))}, which auto takes, fits"
