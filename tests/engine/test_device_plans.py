"""What devices would do with a model: one card as ever, stages where somebody asked for them."""

from typing import Any

import numpy as np
import pytest

from strata import models_shipped
from strata.engine.device_needs import plan_for
from strata.engine.device_plans import PlannedDevices, plan_devices
from strata.engine.memory_plan import budgets_of
from strata.hardware import GpuFacts, MemoryFacts
from strata.settings import EngineSettings
from strata.weights.opening import open_model

GIB = 1 << 30
CARD, OLD = GpuFacts("a card", 24 * GIB, 23 * GIB, (9, 0)), GpuFacts("old", 8 * GIB, 8 * GIB, (7, 5))
MEMORY = MemoryFacts(total=64 * GIB, available=40 * GIB)
asked: list[None] = []


def planned(*gpus: GpuFacts, **values: Any) -> PlannedDevices:
    source = open_model(models_shipped.default_path())
    settings = EngineSettings(context=512, **values)
    asked.clear()
    return plan_devices(source, settings, gpus, MEMORY, None if gpus else "no driver", lambda: asked.append(None))


def test_unasked_it_is_the_first_card_that_will_do_planned_as_ever() -> None:
    found = planned(OLD, CARD)
    assert found.is_used and [each.name for each in found.devices] == ["cuda:1"]
    assert found.plans is not None and found.plans.split.stages == 1
    source, budgets = open_model(models_shipped.default_path()), budgets_of(CARD, MEMORY, None, None)
    assert found.plans.plans == (plan_for(source, EngineSettings(context=512), budgets),)
    assert (planned().problem, planned(device="cpu").problem) == ("no driver", "the setting device is cpu")
    assert not planned(OLD).is_used and not asked


def test_a_profile_is_looked_at_only_where_the_split_is_to_be_found() -> None:
    assert planned(CARD, CARD, layer_split="auto").is_used and asked
    assert planned(CARD, CARD, layer_split="2").is_used and not asked
    assert planned(CARD, devices="cuda:0").is_used and not asked
    both = planned(CARD, CARD, devices="cuda:0,cuda:1")
    assert both.plans is not None and len(both.plans.plans) == len(both.devices) == 2
    assert [plan.request.budgets.card_name for plan in both.plans.plans] == ["cuda:0 (a card)", "cuda:1 (a card)"]


def test_heat_of_the_first_layers_draws_the_cut_to_them() -> None:
    source = open_model(models_shipped.default_path())
    layers, experts = 6, plan_devices(source, EngineSettings(devices="cpu"), (), MEMORY, None, lambda: None)
    assert experts.plans is not None
    count = experts.plans.plans[0].request.experts // layers
    heat = np.ones((layers, count))
    settings = EngineSettings(devices="cpu,cpu", layer_split="auto", context=512)
    even = plan_devices(source, settings, (), MEMORY, None, lambda: heat)
    assert even.plans is not None and even.plans.split.cuts == (3,)


def test_what_nobody_here_can_carry_out_names_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.engine.tier_loading.library.is_available", lambda: False)
    found = planned(CARD, CARD, layer_split="2", cache_gib=0)
    assert found.problem is not None and found.problem.startswith("stage 1 of 2 (layers 0 to 1): the card holds 0% of")
    small = planned(GpuFacts("tiny", GIB, GIB, (9, 0)), CARD, layer_split="2")
    assert small.plans is not None and small.problem == small.plans.refusal
    assert "layers 0 to 1" in str(small.problem)
