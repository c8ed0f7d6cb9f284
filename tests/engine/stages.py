"""Tiny models and the shipped one on a stage, beside the same models on the CPU. Knows no test.

On CPU tensors, over the torch road, unless a card is named: a user has no way to ask for a stage without a GPU.
"""

from functools import cache
from typing import Any

import torch

from strata import models_shipped
from strata.engine.device_windows import windows_ahead
from strata.engine.engine import TokenEngine
from strata.engine.graphs import WindowGraphs
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.weights import DeviceWeights
from strata.models.families import family_of
from strata.models.needs import Part, part_of
from strata.quant.cell_codes import CellKind
from strata.weights.opening import open_model
from tests.engine.served import SETTINGS
from tests.gpu.tiny_models import tiny_model
from tests.models.fast.twins import fast_model

CPU = torch.device("cpu")
TINY = ("qwen4_exp", "qwen3_5_moe", "llama")
EVERY_STATE = ("qwen4_exp", "llama")  # of them, those that have between them every kind of state
POCKET = "pocket"  # the model that ships with strata


@cache
def described(name: str, device: torch.device = CPU) -> tuple[Any, DeviceModel]:
    """A family's tiny model, or the shipped one, built and described for the device."""
    if name != POCKET:
        return tiny_model(name, "none").build(device)
    family, config, source, names = _pocket()
    model: Any = family.build(config, DeviceWeights(source, names, device))
    return model, describe(model, device)


@cache
def native_model(name: str, choice: str = "none") -> Any:
    """The same weights in the C++ library; `choice` is what a family's matrices become."""
    if name == POCKET:
        return fast_model(*_pocket())
    tiny = tiny_model(name, choice)
    return fast_model(tiny.family, tiny.config, tiny.source, tiny.names)


def stage_model(
    name: str,
    slots: int = 2,
    context: int = 512,
    most_drafts: int = 0,
    device: torch.device = CPU,
    kind: CellKind = CellKind.BF16,
) -> StageModel:
    """The model over a stage of its own with empty slots."""
    model, description = described(name, device)
    stage = Stage(description, StageSizes(slots, context, most_drafts, kind))
    return StageModel(stage, WindowGraphs(stage).run, model.config, model.experts_per_row)


def stage_engine(model: StageModel, *, is_ahead: bool) -> TokenEngine:
    """An engine over it whose tokens the device chooses, one window ahead, or this side."""
    return TokenEngine(model, SETTINGS, ahead=windows_ahead(model) if is_ahead else ())


def _pocket() -> tuple[Any, Any, Any, list[str]]:
    source = open_model(models_shipped.default_path(), "none")
    family = family_of(source.config)
    names = [name for name in source.names() if part_of(name) is not Part.MTP]
    return family, family.parse_config(source.config), source, names
