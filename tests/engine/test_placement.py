"""How many conversations fit, and what is said when they do not."""

import pytest

from strata.engine.placement import full_slot_bytes, slots_that_fit
from strata.errors import SettingsError
from strata.models.needs import StateBytes

GIB = 1 << 30


def test_a_full_slot_holds_its_cells_its_state_and_its_checkpoints() -> None:
    assert full_slot_bytes(StateBytes(fixed=100, per_token=2.0), 1000) == 2000 + 100 * 8


@pytest.mark.parametrize(("free", "slots"), [(0, 1), (1, 1), (2, 2), (4, 4), (100, 4)])
def test_unasked_there_are_as_many_as_fit_up_to_four(free: int, slots: int) -> None:
    assert slots_that_fit(None, GIB, free * GIB, 4096) == slots


@pytest.mark.parametrize(("asked", "free"), [(1, 0), (1, 1), (6, 6), (32, 64)])
def test_what_fits_is_given(asked: int, free: int) -> None:
    assert slots_that_fit(asked, GIB, free * GIB, 4096) == asked


def test_more_than_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(SettingsError, match=r"slots: 9 .* 262,144 tokens takes 2\.00 GiB and 5\.0 GiB.* so 2 fit"):
        slots_that_fit(9, 2 * GIB, 5 * GIB, 262144)
