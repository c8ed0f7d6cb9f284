"""What the plan keeps for windows holds what a stage's buffers really take, and not much more."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from strata.engine.stage import Stage, StageSizes
from strata.engine.window_room import window_room
from strata.models.device.describe import describe
from strata.models.device.synthetic import SyntheticWeights
from strata.models.families import family_of
from strata.weights.presets import STYLES, preset_config, set_fields, text_part

CPU = torch.device("cpu")
# As many columns between the parts as in a release: what is counted alike for all rows must not hide a part.
WIDER = {
    "qwen4_exp": ("hidden_size=256", "hc_lowrank=64", "num_attention_heads=8", "num_experts=64"),
    "qwen3_5_moe": ("hidden_size=256", "num_experts=64", "linear_num_value_heads=16"),
    "qwen3_next": ("num_hidden_layers=8",),
    "qwen3_moe": ("hidden_size=256", "num_experts_per_tok=8"),
    "llama": ("intermediate_size=1024",),
}


def storages(thing: Any, found: dict[int, int]) -> dict[int, int]:
    """Bytes of every storage that is reached from here, by its address."""
    if isinstance(thing, torch.Tensor):
        found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, functools.partial):
        storages([*thing.args, *thing.keywords.values()], found)
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            storages(getattr(thing, field.name), found)
    elif isinstance(thing, dict):
        storages(list(thing.values()), found)
    elif isinstance(thing, list | tuple):
        for each in thing:
            storages(each, found)
    return found


def buffer_bytes(stage: Stage) -> int:
    """Of everything that the stage holds and that is neither the model's nor state."""
    held = storages(list(vars(stage).values()), {})
    of_others = storages([stage.model, stage.state], {})
    return sum(size for address, size in held.items() if address not in of_others)


@pytest.mark.parametrize("family", WIDER)
@pytest.mark.parametrize("context", [512, 4096])
@pytest.mark.parametrize("is_wide", [False, True])
def test_the_room_holds_a_stages_buffers(family: str, context: int, is_wide: bool) -> None:
    config = preset_config(family, "tiny")
    set_fields(config, ["vocab_size=1024", *(WIDER[family] if is_wide else ())])
    if text_part(config).get("mtp_num_hidden_layers"):
        text_part(config)["mtp_num_hidden_layers"] = 0
    found = family_of(config)
    parsed = found.parse_config(config)
    weights = SyntheticWeights(found.expected_tensors(parsed), STYLES[family], CPU)
    stage = Stage(describe(found.build(parsed, weights), CPU), StageSizes(32, context))
    taken = buffer_bytes(stage)
    kept = window_room(config, context).at(32, context)
    assert taken <= kept <= 2 * taken


def test_the_published_model_keeps_a_few_hundred_megabytes() -> None:
    room = window_room(preset_config("qwen4_exp", "published"), 262_144)
    assert 100e6 < room.at(4, 262_144) < 700e6
