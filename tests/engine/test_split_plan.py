"""Which layers lie where, and what each stage takes: of the published shape, by made-up cards and profiles."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from strata import models_shipped
from strata.engine.device_needs import plan_request
from strata.engine.memory_plan import CHUNKS, Budget, Budgets, Place, PlanRequest
from strata.engine.part_needs import ModelNeeds
from strata.engine.split_plan import best_split, model_needs, plan_split
from strata.engine.stage_plans import StagePlans, held_bytes, plan_stages
from strata.errors import SettingsError
from strata.models.device.layer_split import LayerSplit
from strata.models.families import family_of
from strata.models.needs import Part
from strata.settings import EngineSettings
from strata.weights.opening import open_model
from strata.weights.presets import preset_config, set_layers

GIB = 1 << 30
LAYERS = 24


def cards(*gib: float, ram: float = 112) -> list[Budgets]:
    return [
        Budgets(f"cuda:{number} (a card)", Budget(int(size * GIB), int(size * GIB)), Budget(128 * GIB, int(ram * GIB)))
        for number, size in enumerate(gib)
    ]


def needs(budgets: Sequence[Budgets], **values: object) -> ModelNeeds:
    """Of the published model with half of its layers, 4.5 bits a routed weight and 8.5 for the others: 35 GiB."""
    config = preset_config("qwen4_exp", "published")
    set_layers(config, LAYERS)
    family = family_of(config)
    parsed = family.parse_config(config)
    shapes = {name: shape for name, shape in family.expected_tensors(parsed).items() if not name.startswith("mtp.")}
    sizes = {
        name: int(math.prod(shape) * (4.5 if ".experts." in name or "ngram_emb" in name else 8.5)) // 8
        for name, shape in shapes.items()
    }
    settings = EngineSettings(**values)  # type: ignore[arg-type]
    requests = [plan_request(config, parsed, sizes, shapes, settings, each) for each in budgets]
    whole = min(requests, key=lambda each: each.chunk_rows)
    return ModelNeeds(parsed, settings, sizes, shapes, whole)


def planned(found: ModelNeeds, split: LayerSplit, budgets: Sequence[Budgets]) -> StagePlans:
    plans = plan_stages(split, found.requests(split, budgets))
    assert plans.refusal is None
    return plans


def grown(request: PlanRequest, name: str, place: Place) -> float:
    return sum(each.at(3, 8192) for each in request.growing if (each.name, each.place) == (name, place))


def test_parts_have_every_byte_of_the_whole_once_and_share_out_what_belongs_to_layers() -> None:
    budgets = cards(80, 80, 80)
    found = needs(budgets)
    parts = found.requests(LayerSplit.of(LAYERS, (5, 17)), budgets)
    for part in Part:
        assert sum(each.weights[part] for each in parts) == found.whole.weights[part]
    assert [each.weights[Part.EMBEDDING] > 0 for each in parts] == [True, False, False]
    assert [each.weights[Part.NGRAM] > 0 for each in parts] == [True, False, False]
    assert sum(each.experts for each in parts) == found.whole.experts
    assert [each.experts // 512 for each in parts] == [5, 12, 7]
    for name, place in (("state", Place.CARD), ("marks to go back to", Place.CARD), ("checkpoints", Place.RAM)):
        assert sum(grown(each, name, place) for each in parts) == pytest.approx(grown(found.whole, name, place), abs=9)
    for name in ("windows", CHUNKS):  # each stage has them all
        assert all(grown(each, name, Place.CARD) == grown(found.whole, name, Place.CARD) for each in parts)
    assert [each.program > 0 for each in parts] == [True, False, False]


def test_even_cards_get_an_even_split_and_all_experts_where_they_fit() -> None:
    budgets = cards(32, 32)
    found = needs(budgets)
    split = best_split(found, budgets)
    assert split.cuts == (12,)
    assert planned(found, split, budgets).seat_share == 1.0


@pytest.mark.parametrize(("sizes", "values"), [((24, 12), {}), ((12, 24), {"slots": 4, "context": 65_536})])
def test_without_a_profile_no_other_split_holds_more_experts(sizes: tuple[int, int], values: dict[str, int]) -> None:
    budgets = cards(*sizes)
    found = needs(budgets, **values)
    split = best_split(found, budgets)
    even = planned(found, LayerSplit.of(LAYERS, (12,)), budgets)  # for so many conversations it is the best
    fixed = needs(budgets, slots=even.slots, context=even.context)
    held = {}
    for cut in range(1, LAYERS):
        each = plan_stages(LayerSplit.of(LAYERS, (cut,)), fixed.requests(LayerSplit.of(LAYERS, (cut,)), budgets))
        if each.refusal is None:
            held[cut] = sum(map(held_bytes, each.plans))
    assert held[split.cuts[0]] == max(held.values()) < fixed.whole.routed_bytes


def test_with_a_profile_it_is_the_heat_that_counts() -> None:
    budgets = cards(8, 8)
    found = needs(budgets, slots=1, context=4096)
    heat = np.ones((LAYERS, 512))
    even = best_split(found, budgets, heat)
    heat[:, :40] = 1000
    heat[:6] = 3000  # few layers have most of it: they get a card with as few others as can be
    hot = best_split(found, budgets, heat)
    assert hot.cuts[0] < even.cuts[0]
    with pytest.raises(SettingsError, match=r"setting devices: 25 of them are more than the 24 layers"):
        best_split(found, cards(*[80] * 25))


def test_three_cards_of_any_size_are_filled() -> None:
    budgets = cards(24, 9, 16)
    found = needs(budgets, slots=2, context=8192)
    plans = planned(found, best_split(found, budgets), budgets)
    assert plans.split.stages == 3 and plans.seat_share > 0.9
    assert len(plans.split.runs[1]) < len(plans.split.runs[0])


def test_a_model_of_this_package_on_stages() -> None:
    source = open_model(models_shipped.default_path())
    settings = EngineSettings(slots=2, context=512)
    plans = plan_split(source, settings, cards(4, 4))
    assert plans.refusal is None and plans.split.stages == 2
    assert {plan.request.chunk_rows for plan in plans.plans} == {512}
    names = [{part.name for part in plan.parts} for plan in plans.plans]
    assert "program" in names[0] - names[1]
    assert all("parked conversations" in each and "chunks set aside" in each for each in names)
    assert plans.plans[0].request.groups == 2  # one a stage
    tight = plan_split(source, settings, cards(4, 4, ram=0.5055))  # too little for chunks that are set aside
    assert tight.refusal is None
    assert not any("chunks set aside" in {part.name for part in plan.parts} for plan in tight.plans)
    refused = plan_split(source, settings, cards(1.02, 4), cuts=[5])
    assert refused.refusal is not None and refused.refusal.startswith("stage 1 of 2 (layers 0 to 4)")
    with pytest.raises(SettingsError, match="cuts in front of layer 6"):
        plan_split(source, settings, cards(4, 4), cuts=[6])
    assert model_needs(source, settings, cards(4, 4)).layers == 6
