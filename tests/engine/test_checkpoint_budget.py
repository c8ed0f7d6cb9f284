"""How much memory checkpoints get, asked or not, and how many points that is."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata import models_shipped
from strata.engine import device_needs
from strata.engine.checkpoint_budget import checkpoint_growth, checkpoints_on_cpu, point_budget
from strata.engine.device_needs import plan_for
from strata.engine.memory_plan import Budget, Budgets, Place
from strata.engine.points import PointBudget
from strata.errors import SettingsError
from strata.hardware import MemoryFacts
from strata.models.needs import StateBytes
from strata.settings import EngineSettings
from strata.weights.opening import open_model

GIB, MIB = 1 << 30, 1 << 20
ONE = 118 * MIB  # of the published shape


@pytest.mark.parametrize(
    ("asked", "usable", "slots", "points"),
    [
        (None, 256, 4, 32),  # plentiful: eight of each slot
        (None, 64, 4, 20),
        (None, 16, 4, 8),
        (None, 16, 1, 5),
        (None, 4, 4, 4),  # short: the last one of each
        (0, 64, 4, 4),
        (2, 64, 4, 4 + 17),
        (4, 64, 1, 1 + 34),
    ],
)
def test_points_of_the_published_shape(asked: float | None, usable: int, slots: int, points: int) -> None:
    growth = checkpoint_growth(ONE, asked, usable * GIB, slots)
    assert point_budget(growth.at(slots, 0), ONE, slots) == PointBudget(points, slots)


def test_a_plan_that_has_less_room_than_every_slot_needs_keeps_the_last_points() -> None:
    assert point_budget(0, ONE, 3) == PointBudget(3, 3)


def test_states_that_only_grow_cost_nothing() -> None:
    growth = checkpoint_growth(0, None, GIB, 2)
    assert growth.at(2, 4096) == 0
    assert point_budget(0, 0, 2).points == 128


def test_more_than_there_is_is_refused_with_the_numbers() -> None:
    with pytest.raises(SettingsError, match=r"checkpoint_gib: 9 does not work: 8\.0 GiB of main memory may be used"):
        checkpoint_growth(ONE, 9, 8 * GIB, 1)


def test_checkpoints_that_nobody_asked_for_give_way_to_a_model_that_fits_without_them() -> None:
    source = open_model(models_shipped.default_path())
    roomy = Budgets("a card", Budget(80 * GIB, 80 * GIB), Budget(GIB, GIB))
    settings = EngineSettings(slots=1, parked_gib=0)
    plan = plan_for(source, settings, roomy)
    assert plan.refusal is None
    least = plan_for(source, replace(settings, checkpoint_gib=0), roomy).used(Place.RAM)
    assert least < plan.used(Place.RAM), "there is room for more of them than every slot needs"
    short = replace(roomy, ram=Budget(GIB, least))
    assert plan_for(source, settings, short).used(Place.RAM) == least
    assert plan_for(source, replace(settings, checkpoint_gib=0.1), short).refusal is not None


@pytest.mark.parametrize(
    ("with_them", "without", "keeps"),
    [
        ({}, {}, True),
        ({"reads_tables": True}, {}, False),
        ({"is_filed": True, "is_exclusive": True}, {"is_exclusive": True}, False),
        ({"reads_tables": True}, {"reads_tables": True}, True),  # which would be so without them, too
        ({"is_filed": True}, {"is_filed": True}, True),
    ],
)
def test_nothing_stays_in_files_for_checkpoints_that_nobody_asked_for(
    with_them: dict[str, bool], without: dict[str, bool], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(source: Any, settings: EngineSettings, budgets: Any, **_: bool) -> Any:
        left = {"is_filed": False, "is_exclusive": False, "reads_tables": False}
        left |= with_them if settings.checkpoint_gib is None else without
        return SimpleNamespace(refusal=None, request=SimpleNamespace(**left), gib=settings.checkpoint_gib)

    monkeypatch.setattr(device_needs, "_plan_for", planned)
    found: Any = plan_for(cast(Any, None), EngineSettings(parked_gib=0), cast(Any, None))
    assert found.gib == (None if keeps else 0)


def test_a_system_that_does_not_say_how_much_memory_it_has() -> None:
    settings: Any = SimpleNamespace(checkpoint_gib=None, slots=2)
    unknown = MemoryFacts(total=0, available=0)
    assert checkpoints_on_cpu(StateBytes(ONE, 1.0), settings, unknown).per_slot == 9 * ONE
