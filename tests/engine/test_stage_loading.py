"""A card that runs out of memory while room is made: less is tried, as far as nobody asked for it, and it is said."""

import atexit
from dataclasses import replace
from typing import Any

import pytest
import torch

from strata.engine.memory_plan import MemoryPlan
from strata.engine.placement import plan_memory
from strata.engine.stage import Variant
from strata.engine.stage_loading import Card, ModelFiles, largest_that_fits, load_stage, plan_notices
from strata.engine.stage_plans import StagePlans
from strata.errors import EngineError, ModelError
from strata.models.base import LanguageModel, Segment
from tests.engine.test_placement import request
from tests.gpu.tiny_models import TinyModel, tiny_model

GIB = 1 << 30
CPU = Card(torch.device("cpu"), lambda: 80 * GIB, lambda: None)


def tried(plan: MemoryPlan, most_tokens: int) -> tuple[list[tuple[int, int]], int, MemoryPlan]:
    """What is tried of a plan if no more than so many tokens of all conversations fit, and what came of it."""
    seen: list[tuple[int, int]] = []
    released: list[None] = []

    def make(_: int, attempt: MemoryPlan) -> str:
        seen.append((attempt.slots, attempt.context))
        if attempt.slots * attempt.context > most_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "made"

    made, found = largest_that_fits(StagePlans.single(plan, 4), make, lambda: released.append(None))
    assert made == ["made"]
    return seen, len(released), found.plans[0]


def test_slots_are_given_up_first_and_then_context() -> None:
    plan = plan_memory(request(card=80))
    assert (plan.slots, plan.context) == (1, 131072)
    assert tried(replace(plan, slots=4), 4 * 131072)[:2] == ([(4, 131072)], 0)
    seen, released, found = tried(replace(plan, slots=4), 40000)
    assert seen == [(4, 131072), (2, 131072), (1, 131072), (1, 65536), (1, 32768)]
    assert released == len(seen) - 1
    assert (found.slots, found.context) == (1, 32768)


def test_what_was_asked_for_is_not_given_up() -> None:
    plan = plan_memory(request(asked_slots=2, asked_context=8192))
    with pytest.raises(EngineError, match="room was made for 2 conversations of 8,192 tokens: ask for fewer"):
        tried(plan, 100)


def test_another_failure_is_no_reason_to_try_again() -> None:
    def make(*_: object) -> None:
        raise RuntimeError("CUDA error: invalid argument")

    with pytest.raises(RuntimeError, match="invalid argument"):
        largest_that_fits(StagePlans.single(plan_memory(request()), 4), make, lambda: None)


def test_the_user_hears_what_became_smaller() -> None:
    plan = replace(plan_memory(request()), slots=4)
    smaller = replace(plan, slots=1, context=32768)
    assert notices_of(plan, plan, plan.context) == ()
    told = notices_of(plan, smaller, 131072)
    assert told == (
        "the card had room for less than planned: 1 conversation of 32,768 tokens instead of 4 conversations of "
        "131,072 tokens",
        "the context is 32,768 tokens, which is what fits on the card; the model was made for 131,072",
    )
    asked = replace(smaller, request=replace(smaller.request, asked_context=32768))
    assert notices_of(asked, asked, 131072) == ()


def notices_of(wanted: MemoryPlan, found: MemoryPlan, longest: int) -> tuple[str, ...]:
    return plan_notices(StagePlans.single(wanted, 4), StagePlans.single(found, 4), longest)


def files_of(tiny: TinyModel) -> ModelFiles:
    return ModelFiles(tiny.family, tiny.config, tiny.source, tiny.names)


def test_a_stage_is_loaded_as_planned() -> None:
    tiny = tiny_model("llama", "none")
    plan = plan_memory(request(asked_slots=2, asked_context=100))
    seen: list[str] = []
    loaded = load_stage(files_of(tiny), CPU, plan, lambda stage, *_: seen.append(stage))
    model = loaded.model
    assert (model.stage.sizes.slots, model.max_position, loaded.plan) == (2, 100, plan)
    assert set(seen) == {"loading the model"}
    assert loaded.notices == ()
    assert model.read([Segment(model.new_state(), torch.tensor([1, 2, 3]))]).logits.shape == (1, 96)


def test_a_profiled_stage_runs_step_by_step_and_keeps_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda _, times: kept.append(times))
    tiny = tiny_model("llama", "none")
    plan = plan_memory(request(asked_slots=1, asked_context=100))
    model = load_stage(files_of(tiny), CPU, plan, is_profiled=True).model
    model.read([Segment(model.new_state(), torch.tensor([1, 2, 3]))])
    (times,) = kept
    assert {variant for variant, _ in times} >= {Variant.FORWARD, Variant.COMMIT}


def test_an_interrupt_ends_the_loading_where_it_is() -> None:
    tiny = tiny_model("llama", "none")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_stage(files_of(tiny), CPU, plan_memory(request()), interrupt)


def test_a_card_that_others_have_filled_meanwhile_is_refused_with_the_plan() -> None:
    tiny = tiny_model("llama", "none")
    full = Card(torch.device("cpu"), lambda: 0, lambda: None)
    with pytest.raises(ModelError, match="does not fit on a card"):
        load_stage(files_of(tiny), full, plan_memory(request()))


def test_weights_that_do_not_fit_say_how_much_is_free() -> None:
    tiny = tiny_model("llama", "none")

    def build(*_: object) -> LanguageModel:
        raise torch.OutOfMemoryError("CUDA out of memory")

    files = replace(files_of(tiny), family=replace(tiny.family, build=build))
    with pytest.raises(EngineError, match=r"while the weights were read: 80\.0 GiB are free"):
        load_stage(files, CPU, plan_memory(request()))
