"""What keys and values in main memory take of a card is what a stage takes, and what a card cannot do is refused."""

from dataclasses import replace

import pytest
import torch

from strata.engine.cells_room import KEYS_AND_VALUES, check_resident, conversation_room
from strata.engine.device_needs import plan_request, state_of
from strata.engine.memory_plan import Budget, Budgets, Place
from strata.engine.placement import plan_memory
from strata.errors import SettingsError
from strata.models.device.sizes import state_sizes
from strata.models.device.state import DeviceState
from strata.models.families import family_of
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings
from strata.weights.presets import preset_config

GIB = 1 << 30
ROOMY = Budgets("a card", Budget(24 * GIB, 23 * GIB), Budget(128 * GIB, 120 * GIB))
CONFIG = preset_config("qwen4_exp", "published")
PARSED = family_of(CONFIG).parse_config(CONFIG)
SIZES = state_sizes(PARSED)


def planned(settings: EngineSettings, budgets: Budgets = ROOMY) -> dict[Place, dict[str, int]]:
    """The parts of a plan for a model without weights."""
    plan = plan_memory(plan_request(CONFIG, PARSED, {}, {}, settings, budgets))
    assert plan.refusal is None
    return {place: {part.name: part.size for part in plan.parts if part.place is place} for place in Place}


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.K8V4])
def test_the_plan_is_what_a_state_takes(kind: CellKind) -> None:
    config = preset_config("qwen4_exp", "tiny")
    sizes = state_sizes(family_of(config).parse_config(config))
    settings = EngineSettings(kv_kind=kind.value, kv_resident=192)
    growing = conversation_room(state_of(sizes, kind), sizes, settings, 1024)
    state = DeviceState.empty(sizes, 3, 1024, kind, torch.device("cpu"), 192)
    assert state.pools is not None
    stored = sum(part.nbytes for part in state.pools.stored.tensors)
    on_card = [each for each in growing if each.place is Place.CARD and each.name in ("state", KEYS_AND_VALUES)]
    fixed = state.pools.words.nbytes + state.pools.totals.nbytes
    assert abs(sum(each.at(3, 1024) for each in on_card) - (state.bytes_used() - stored - fixed)) < 16
    assert sum(each.at(3, 1024) for each in growing if each.place is Place.RAM) == stored


def test_a_card_keeps_little_and_main_memory_all() -> None:
    whole = planned(EngineSettings(context=131_072, slots=2))
    paged = planned(EngineSettings(context=131_072, slots=2, kv_resident=32_768))
    cells = 2 * SIZES.attention_layers * SIZES.kv_heads * 4 * SIZES.head_dim
    assert paged[Place.RAM][KEYS_AND_VALUES] == 131_072 * cells
    assert cells * 32_768 < paged[Place.CARD][KEYS_AND_VALUES] < 1.01 * cells * 32_768
    assert whole[Place.CARD]["state"] - paged[Place.CARD]["state"] > 0.99 * cells * 131_072
    assert KEYS_AND_VALUES not in whole[Place.RAM]


def test_main_memory_bounds_a_context_that_nobody_asked_for() -> None:
    little = replace(ROOMY, ram=Budget(8 * GIB, 4 * GIB))
    found = planned(EngineSettings(slots=1, kv_resident=4096), little)
    assert 1 * GIB < found[Place.RAM][KEYS_AND_VALUES] < 4 * GIB
    assert (
        found[Place.RAM][KEYS_AND_VALUES]
        < planned(EngineSettings(slots=1, kv_resident=4096))[Place.RAM][KEYS_AND_VALUES]
    )


def test_too_few_cells_are_refused_with_the_least_that_works() -> None:
    check_resident(PARSED, SIZES, EngineSettings(kv_resident=2056))
    with pytest.raises(SettingsError, match=r"kv_resident: 2,055 does not work: .*; 2,056 is the least that works"):
        check_resident(PARSED, SIZES, EngineSettings(kv_resident=2055))


def test_a_model_that_reads_all_cells_is_refused() -> None:
    config = preset_config("llama", "tiny")
    parsed = family_of(config).parse_config(config)
    with pytest.raises(SettingsError, match="every row of this model reads all its keys and values"):
        check_resident(parsed, state_sizes(parsed), EngineSettings(kv_resident=4096))
