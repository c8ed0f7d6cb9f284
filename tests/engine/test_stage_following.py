"""Stages are followed each by itself, and what they were asked for is told once, layer by layer of the whole model."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from strata.engine.device_needs import plan_for
from strata.engine.part_loading import Card, ModelFiles
from strata.engine.split_plan import model_needs
from strata.engine.stage_following import follow_stages
from strata.engine.stage_loading import load_stages
from strata.engine.stage_plans import StagePlans, plan_stages
from strata.models.base import Segment
from strata.models.device.layer_split import LayerSplit
from strata.native import library
from strata.settings import EngineSettings
from strata.weights.opening import ModelSource
from tests.engine.test_tier_loading import BUDGETS
from tests.gpu.tiny_models import tiny_model

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
SETTINGS = EngineSettings(slots=1, context=256, gpu_reads="windows", parked_gib=0, pcie_share=0.5)


def split_plans(source: ModelSource, layers: int, has_tiers: tuple[bool, bool]) -> StagePlans:
    split = LayerSplit.of(layers, (1,))
    requests = model_needs(source, SETTINGS, [BUDGETS] * 2).requests(split, [BUDGETS] * 2)
    return plan_stages(
        split,
        [replace(each, asked_cache=0 if tiers else None) for each, tiers in zip(requests, has_tiers, strict=True)],
    )


@pytest.mark.parametrize("has_tiers", [(True, True), (False, True), (True, False)])
def test_heat_is_told_once_in_the_models_rows(has_tiers: tuple[bool, bool]) -> None:
    tiny = tiny_model("qwen3_moe", "code8")
    plans = split_plans(tiny.source, tiny.config.num_layers, has_tiers)
    assert tuple(plan.seats is not None for plan in plans.plans) == has_tiers
    files = ModelFiles(tiny.family, tiny.config, tiny.source, tiny.names)
    loaded = load_stages(files, [Card.cpu(), Card.cpu()], plans)
    told: list[np.ndarray] = []
    follow_stages(loaded, SETTINGS, told.append)
    model = loaded.model
    state = model.new_state()
    for token in range(8):
        model.commit(model.window([Segment(state, torch.tensor([token]))]), [1])
    del model, loaded, state
    gc.collect()
    (heat,) = told
    experts = plan_for(tiny.source, SETTINGS, BUDGETS).request.experts // 2
    assert heat.shape == (2, experts)
    assert tuple(row.sum() > 0 for row in heat) == has_tiers
