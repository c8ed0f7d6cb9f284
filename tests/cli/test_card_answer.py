"""What a card would do with a model: a plan that is carried out, one that is refused, or why no card is asked."""

from dataclasses import replace
from typing import Any

import pytest

from strata import models_shipped
from strata.cli import card_answer
from strata.cli.card_answer import ask_card
from strata.engine import tier_loading
from strata.errors import SettingsError
from strata.hardware import GpuFacts, MemoryFacts, read_hardware
from strata.settings import EngineSettings

MODEL = models_shipped.default_path()
GIB = 1 << 30
PC = replace(
    read_hardware(),
    memory=MemoryFacts(total=16 * GIB, available=8 * GIB),
    gpus=(GpuFacts("a card", 8 * GIB, 8 * GIB, (9, 0)),),
)


def test_a_plan_that_fits_is_used() -> None:
    found = ask_card(MODEL, EngineSettings(), PC)
    assert found.is_used
    assert found.plan is not None and found.plan.seats is None


def test_a_plan_that_does_not_fit_is_there_and_not_used() -> None:
    small = replace(PC, gpus=(GpuFacts("a card", GIB, GIB // 2, (9, 0)),))
    found = ask_card(MODEL, EngineSettings(), small)
    assert found.plan is not None and found.plan.refusal is not None
    assert (found.problem, found.is_used) == (found.plan.refusal, False)


def test_what_does_not_fit_is_told_before_what_nobody_here_can_carry_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the engine refuses it."""
    monkeypatch.setattr(tier_loading, "tiers_problem", lambda _: "the library was not built")
    small = replace(PC, gpus=(GpuFacts("a card", GIB, GIB // 2, (9, 0)),))
    found = ask_card(MODEL, EngineSettings(), small)
    assert found.plan is not None
    assert found.problem == found.plan.refusal != "the library was not built"


def test_a_plan_that_nobody_here_can_carry_out_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_loading, "tiers_problem", lambda _: "the library was not built")
    found = ask_card(MODEL, EngineSettings(), PC)
    assert (found.problem, found.is_used) == ("the library was not built", False)


@pytest.mark.parametrize(("device", "gpus"), [("cpu", PC.gpus), ("auto", ())])
def test_where_no_card_is_asked_it_says_why(
    device: str, gpus: tuple[GpuFacts, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_answer, "why_no_gpu", lambda: "there is no card")
    found = ask_card(MODEL, EngineSettings(device=device), replace(PC, gpus=gpus))
    assert (found.plan, found.is_used) == (None, False)
    assert found.problem in ("the setting device is cpu", "there is no card")


def test_a_budget_that_is_more_than_there_is_is_refused() -> None:
    with pytest.raises(SettingsError, match="vram_gib: 9 does not work: a card has 8"):
        ask_card(MODEL, EngineSettings(vram_gib=9), PC)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"device": "cpu", "kv_resident": 4096}, "4,096 does not work: on the CPU all keys and values lie in main"),
        ({"kv_resident": 4096}, "it is for a card, and the model runs on none: a tiny card"),
        ({"device": "cpu", "checkpoint_gib": 4000.0}, "setting checkpoint_gib: 4000 does not work"),
        ({"device": "cpu", "parked_gib": 4000.0}, "setting parked_gib: 4000 does not work"),
        ({"checkpoint_gib": 4000.0}, "setting checkpoint_gib: 4000 does not work"),
    ],
)
def test_what_is_refused_when_a_model_is_loaded_is_refused_here(values: dict[str, Any], words: str) -> None:
    old = replace(PC, gpus=(GpuFacts("a tiny card", GIB, GIB, (7, 0)),))
    with pytest.raises(SettingsError, match=words):
        ask_card(MODEL, EngineSettings(**values), old)


def test_stages_are_planned_where_they_are_asked_for() -> None:
    found = ask_card(MODEL, EngineSettings(devices="cuda:0,cpu", layer_split="2"), PC)
    assert found.is_used and found.plans is not None
    assert [plan.request.budgets.card_name for plan in found.plans.plans] == ["cuda:0 (a card)", "the processor"]
