"""One part of a model by itself, as a process of several has it: nothing of the other stages is read."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from strata.engine.memory_plan import Budget, Budgets, MemoryPlan, Place
from strata.engine.part_loading import Card, ModelFiles, groups_of, load_parts, make_part, sizes_of
from strata.engine.placement import plan_memory
from strata.engine.split_plan import plan_split
from strata.engine.stage_loading import LoadedStage, load_stages
from strata.engine.stage_plans import StagePlans
from strata.engine.tier_loading import TierWishes
from strata.errors import ModelError
from strata.models.base import Segment
from strata.models.device.layer_split import LayerSplit
from strata.models.families import family_of
from strata.native import library
from strata.weights.opening import open_model
from tests.engine.filed_stages import SETTINGS, filed_stage, whole_plan
from tests.engine.test_placement import request
from tests.engine.test_tier_loading import BUDGETS, GIB
from tests.gpu.tiny_models import tiny_model
from tests.weights.gguf_models import gguf

CPU = Card.cpu()


def plans_of(layers: int, **changes: Any) -> StagePlans:
    plan = plan_memory(request(asked_slots=2, asked_context=100))
    plan = replace(plan, request=replace(plan.request, **changes))
    return StagePlans(LayerSplit.of(layers, (1,)), (plan, plan))


@pytest.mark.parametrize("number", [0, 1])
def test_a_part_is_loaded_without_the_others(number: int) -> None:
    tiny = tiny_model("qwen4_exp", "code8")
    files = ModelFiles(tiny.family, tiny.config, tiny.source, tiny.names)
    seen: list[tuple[int, int]] = []
    plans = plans_of(tiny.config.num_layers, groups=2)
    found = load_parts(files, plans, {number: CPU}, TierWishes(), lambda _, done, total: seen.append((done, total)))
    assert list(found) == [number]
    part = found[number]
    assert (part.description.is_first, part.description.is_last) == (number == 0, number == 1)
    assert len(part.description.layers) == (1, tiny.config.num_layers - 1)[number]
    assert part.words == ("stage 1 of 2 (layer 0)", "stage 2 of 2 (layers 1 to 3)")[number]
    assert seen[-1][0] == seen[-1][1]
    made = make_part(part, part.plan)
    assert len(made.stages) == len(made.runs) == groups_of(part.plan) == 2
    assert made.stages[1].state is made.stages[0].state and made.chunks is None
    assert made.stages[0].sizes == sizes_of(part.plan)


def test_both_parts_report_one_progress_that_rises_to_the_end() -> None:
    tiny = tiny_model("qwen3_next", "code4")
    files = ModelFiles(tiny.family, tiny.config, tiny.source, tiny.names)
    seen: list[tuple[int, int]] = []
    plans = plans_of(tiny.config.num_layers)
    load_parts(files, plans, {0: CPU, 1: CPU}, TierWishes(), lambda _, done, total: seen.append((done, total)))
    assert len({total for _, total in seen}) == 1
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_a_card_that_others_have_filled_is_told_by_its_stage() -> None:
    tiny = tiny_model("qwen3_moe", "code8")
    files = ModelFiles(tiny.family, tiny.config, tiny.source, tiny.names)
    tiered: MemoryPlan = plan_memory(request(card=40, ram=128))
    assert tiered.seats
    plans = StagePlans(LayerSplit.of(2, (1,)), (tiered, tiered))
    full = Card(torch.device("cpu"), lambda: 0, lambda: None)
    with pytest.raises(ModelError, match=r"stage 2 of 2 \(layer 1\): this model does not fit on a card"):
        load_parts(files, plans, {1: full}, TierWishes())


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
@pytest.mark.parametrize("table", ["auto", "file"])
def test_experts_and_tables_in_files_change_no_bit_of_stages(table: str) -> None:
    path = gguf("qwen4_exp", "Q8_0")
    one_stage, source = filed_stage(path, whole_plan(path)), open_model(path)
    family, routed = family_of(source.config), whole_plan(path).request.routed_bytes
    files = ModelFiles(family, family.parse_config(source.config), source, list(source.names()))
    settings = replace(SETTINGS, cache_gib=0.2 * routed / GIB, ngram_table=table)
    roomy = Budgets("a card", BUDGETS.card, Budget(8 * GIB, 8 * GIB))
    full = plan_split(source, replace(settings, mmap=False), [roomy] * 2, [1])
    limit = sum(plan.used(Place.RAM) for plan in full.plans) - int(0.4 * routed)
    plans = plan_split(source, settings, [replace(roomy, ram=Budget(8 * GIB, 8 * GIB, limit))] * 2, [1])
    assert plans.refusal is None and all(plan.request.is_filed for plan in plans.plans)
    found = load_stages(files, [CPU, CPU], plans, wishes=TierWishes(threads=2))
    assert torch.equal(logits_of(found), logits_of(one_stage))
    assert found.model.experts_read["experts"] > 0
    read_tables = [stage.model.tables is not None for stage in found.model.stage.stages]
    assert read_tables == ([False, True] if table == "file" else [False, False])


def logits_of(found: LoadedStage) -> torch.Tensor:
    return found.model.read([Segment(found.model.new_state(), torch.arange(40) % 96)]).logits
