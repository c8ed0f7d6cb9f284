"""How much main memory conversations have whose slots are wanted: what is asked for, and what is left for them."""

from dataclasses import replace

import pytest

from strata import models_shipped
from strata.build import load_model
from strata.engine.device_needs import plan_for
from strata.engine.memory_plan import GIB, Budget, Budgets, Place
from strata.engine.parked_budget import (
    LEFT_PART,
    MOST_BYTES,
    MOST_CONVERSATIONS,
    PARKED,
    RAM_PART,
    asked_parking,
    parking_growth,
    parking_on_cpu,
    planned_parking,
    unasked_parking,
)
from strata.errors import SettingsError
from strata.hardware import MemoryFacts
from strata.models.needs import StateBytes
from strata.settings import EngineSettings
from strata.weights.opening import open_model

STATE = StateBytes(118 << 20, 32_256.0)
SETTINGS = EngineSettings(slots=1)


def test_more_than_there_is_is_refused_with_the_numbers() -> None:
    with pytest.raises(SettingsError, match=r"parked_gib: 9 does not work: 8\.0 GiB of main memory may be used in all"):
        asked_parking(9, 8 * GIB)
    assert (asked_parking(None, GIB), asked_parking(0, GIB), asked_parking(0.5, GIB)) == (0, 0, GIB // 2)
    assert (parking_growth(0, GIB), parking_growth(None, GIB)) == ((), ())
    (growth,) = parking_growth(2, 8 * GIB)
    assert (growth.name, growth.place, growth.at(4, 1000)) == (PARKED, Place.RAM, 2 * GIB)


@pytest.mark.parametrize(
    ("left", "usable", "context", "size"),
    [
        (100 * GIB, 64 * GIB, 32_768, 64 * GIB // RAM_PART),
        (2 * GIB, 64 * GIB, 32_768, 2 * GIB // LEFT_PART),
        (500 * GIB, 512 * GIB, 262_144, MOST_BYTES),
        (500 * GIB, 512 * GIB, 1000, MOST_CONVERSATIONS * STATE.at(1000)),
        (GIB // 2, 64 * GIB, 32_768, 0),  # not one short conversation
        (-GIB, 64 * GIB, 32_768, 0),
    ],
)
def test_unasked_it_is_a_part_of_what_is_left(left: int, usable: int, context: int, size: int) -> None:
    assert unasked_parking(left, usable, STATE, context) == size


def test_on_the_cpu_a_state_counts_with_the_room_that_it_has_to_grow() -> None:
    memory = MemoryFacts(total=64 * GIB, available=32 * GIB)
    space = parking_on_cpu(None, memory, 8 * GIB, STATE, 32_768)
    assert space.limit == 2 * GIB
    assert space.size(1000) >= STATE.at(1000 + 1000 // 4 + 512)
    assert parking_on_cpu(None, memory, None, STATE, 32_768).limit == 0  # experts have all the rest
    assert parking_on_cpu(1, memory, None, STATE, 32_768).limit == GIB
    assert parking_on_cpu(0, memory, 0, STATE, 32_768).limit == 0
    unknown = MemoryFacts(total=0, available=0)
    assert (parking_on_cpu(None, unknown, 0, STATE, 1000).limit, parking_on_cpu(3, unknown, 0, STATE, 1000).limit) == (
        0,
        3 * GIB,
    )


def test_a_plan_has_room_for_them_only_where_nothing_was_given_up_for_it() -> None:
    source = open_model(models_shipped.default_path())
    roomy = Budgets("a card", Budget(80 * GIB, 80 * GIB), Budget(64 * GIB, 64 * GIB))
    plan, without = (plan_for(source, replace(SETTINGS, parked_gib=gib), roomy) for gib in (None, 0))
    assert planned_parking(plan) > 0 == planned_parking(without)
    assert plan.used(Place.RAM) == without.used(Place.RAM) + planned_parking(plan)
    assert (plan.slots, plan.context, plan.seats, plan.refusal) == (without.slots, without.context, None, None)
    short = replace(roomy, ram=Budget(GIB, without.used(Place.RAM)))
    assert planned_parking(plan_for(source, SETTINGS, short)) == 0
    asked = plan_for(source, replace(SETTINGS, parked_gib=0.25, checkpoint_gib=0), short)
    assert planned_parking(asked) == GIB // 4 and asked.refusal is not None


def test_a_load_is_refused_before_weights_are_read_and_says_what_works() -> None:
    with pytest.raises(SettingsError, match=r"parked_gib: 4096 does not work.*a smaller number does"):
        load_model(None, replace(SETTINGS, device="cpu", parked_gib=4096))


def test_a_load_on_the_cpu_keeps_what_was_asked_for() -> None:
    parked = load_model(None, replace(SETTINGS, device="cpu", parked_gib=0.25)).engine.parking
    assert (parked.limit, parked.size(1000) > parked.size(0) > 0) == (GIB // 4, True)
    assert load_model(None, replace(SETTINGS, device="cpu", parked_gib=0)).engine.parking.limit == 0
