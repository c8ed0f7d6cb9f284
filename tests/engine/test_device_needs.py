"""What a model asks of a card follows from its config and headers, and is what its state really takes."""

import math
from dataclasses import replace

import pytest
import torch

from strata import models_shipped
from strata.engine.device_needs import plan_for, plan_request, state_of
from strata.engine.memory_plan import Budget, Budgets, Place
from strata.engine.placement import plan_memory
from strata.models.device.sizes import state_sizes
from strata.models.device.state import DeviceState
from strata.models.families import family_of
from strata.models.needs import Part
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings
from strata.weights.opening import open_model
from strata.weights.presets import preset_config, set_layers

GIB = 1 << 30
H200 = Budgets("an H200", Budget(140 * GIB, 139 * GIB), Budget(128 * GIB, 120 * GIB))


def parts(budgets: Budgets, layers: int, settings: EngineSettings) -> dict[str, int]:
    """The parts of a plan for the published model with 4.5 bits a routed weight and 8.5 for the others."""
    config = preset_config("qwen4_exp", "published")
    set_layers(config, layers)
    family = family_of(config)
    parsed = family.parse_config(config)
    shapes = {name: shape for name, shape in family.expected_tensors(parsed).items() if not name.startswith("mtp.")}
    sizes = {
        name: int(math.prod(shape) * (4.5 if ".experts." in name or "ngram_emb" in name else 8.5)) // 8
        for name, shape in shapes.items()
    }
    plan = plan_memory(plan_request(config, parsed, sizes, shapes, settings, budgets))
    assert plan.refusal is None
    return {part.name: part.size for part in plan.parts}


@pytest.mark.parametrize("family", ["qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe", "llama"])
def test_the_plans_state_is_what_the_device_allocates(family: str) -> None:
    values = preset_config(family, "tiny")
    sizes = state_sizes(family_of(values).parse_config(values))
    for kind in (CellKind.BF16, CellKind.K8V4):
        state = DeviceState.empty(sizes, 3, 1500, kind, torch.device("cpu"))
        assert state_of(sizes, kind).at(state.cells) * 3 == state.bytes_used()


def test_the_shipped_model_fits_on_a_small_card() -> None:
    plan = plan_for(open_model(models_shipped.default_path()), EngineSettings(), replace(H200, card=Budget(GIB, GIB)))
    assert plan.refusal is not None  # a reserve of a GiB leaves nothing of one
    plan = plan_for(
        open_model(models_shipped.default_path()), EngineSettings(slots=2), replace(H200, card=Budget(GIB, 2 * GIB))
    )
    assert (plan.slots, plan.refusal) == (2, None)
    assert {part.name for part in plan.parts if part.place is Place.CARD} >= {Part.ROUTED.value, "state"}


def test_the_published_model_with_a_quarter_of_its_layers() -> None:
    found = parts(H200, 12, EngineSettings(context=30_000, slots=8))
    assert found[Part.ROUTED.value] == 12 * 512 * 3 * 2560 * 640 * 4.5 / 8  # 17 GB
    assert found[Part.NGRAM.value] > 20 * GIB  # and lies in main memory
    delta = 9 * 48 * 128 * 128 * 4
    assert delta * 8 < found["marks to go back to"] / 2 < 1.1 * delta * 8
    cells = 3 * 30_208 * (2 * 2 * 256 * 2 + (128 + 32) * 4)  # 30,000 rows take 59 runs of 512
    assert cells * 8 < found["state"] < (cells + 1.1 * delta) * 8 + 1


def test_cells_take_what_their_kind_takes() -> None:
    states = {
        kind: parts(H200, 12, EngineSettings(context=30_000, slots=8, kv_kind=kind))["state"] for kind in CellKind
    }
    index, cells = 3 * 30_208 * (128 + 32) * 4, 8 * 3 * 30_208 * 2
    fixed = states[CellKind.BF16] - 8 * index - cells * 1024
    taken = {kind: (size - 8 * index - fixed) / cells for kind, size in states.items()}
    wanted = {"f32": 2048, "bf16": 1024, "int8": 2 * (256 + 8), "k8v4": 256 + 8 + 128 + 8, "q4": 2 * (128 + 8)}
    assert {kind: round(size) for kind, size in taken.items()} == wanted


def test_a_draft_layer_counts_only_if_it_drafts() -> None:
    source = open_model(models_shipped.default_path())
    without, with_drafts = (plan_for(source, EngineSettings(drafts=drafts), H200) for drafts in (0, 2))
    names = [{part.name for part in plan.parts} for plan in (without, with_drafts)]
    assert Part.MTP.value not in names[0]
    assert (Part.MTP.value in names[1]) == any(name.startswith("mtp.") for name in source.names())


def test_a_published_model_on_a_small_card_keeps_its_experts_beside_it() -> None:
    small = Budgets("a card of 24 GiB", Budget(24 * GIB, 23 * GIB), Budget(128 * GIB, 120 * GIB))
    found = parts(small, 48, EngineSettings())
    assert found["experts"] == 48 * 512 * 3 * 2560 * 640 * 4.5 / 8
    assert 0.1 * found["experts"] < found["expert seats"] < 0.3 * found["experts"]
    apart = parts(small, 48, EngineSettings(resident=True))
    one = found["experts"] / (48 * 512)
    assert apart["expert seats"] == found["expert seats"]
    assert apart["experts"] + apart["expert seats"] == pytest.approx(found["experts"] + 64 * one, abs=2)
    assert "expert seats" not in parts(small, 48, EngineSettings(cache_gib=0))
