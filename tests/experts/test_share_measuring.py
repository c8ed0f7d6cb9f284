"""Measuring at load finds the rates of two sides that slow each other down, and is soon over."""

import numpy as np
import pytest
import torch

from strata.experts.blob import layout_of
from strata.experts.share import Rates
from strata.experts.share_measuring import PART_S, PoolSide, measure_rates, rates_beside
from strata.experts.store import ExpertStore
from strata.experts.store_plan import StoreLayer, StorePlan
from strata.native import library
from strata.native.pool import Pool
from tests.experts.experts import random_expert

GB = 10**9
TRUE = Rates(106.0 * GB, 50.0 * GB, 82.0 * GB, 45.0 * GB)
CPU = torch.device("cpu")


class TwoSides:
    """A clock, and two sides that share a memory: the link runs while the CPU does, and ends alone."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.now = 0.0
        self.link_bytes = 0
        self.link_seconds: float | None = None

    def run(self, bytes_: int) -> tuple[int, float]:
        rates, cpu_s = self.rates, bytes_ / self.rates.cpu_alone
        if self.link_bytes and self.link_seconds is None:
            together = min(bytes_ / rates.cpu_beside, self.link_bytes / rates.link_beside)
            cpu_s = together + (bytes_ - together * rates.cpu_beside) / rates.cpu_alone
            self.link_seconds = together + (self.link_bytes - together * rates.link_beside) / rates.link_alone
        self.now += cpu_s
        return bytes_, cpu_s

    def start(self, bytes_: int) -> None:
        self.link_bytes, self.link_seconds = bytes_, None

    def wait(self) -> tuple[int, float]:
        seconds = self.link_bytes / self.rates.link_alone if self.link_seconds is None else self.link_seconds
        self.now += seconds
        bytes_, self.link_bytes = self.link_bytes, 0
        return bytes_, seconds


@pytest.mark.parametrize("true", [TRUE, Rates(20.0 * GB, 12.0 * GB, 11.0 * GB, 9.0 * GB)])
def test_rates_are_found_in_well_under_a_second(true: Rates) -> None:
    sides = TwoSides(true)
    found = measure_rates(sides, sides)
    for name in ("cpu_alone", "link_alone", "cpu_beside", "link_beside"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.01)
    assert sides.now < 7 * PART_S


def test_a_side_is_never_faster_beside_the_other() -> None:
    found = rates_beside(100.0, 50.0, (1000, 5.0), (200, 8.0))  # a noisy clock
    assert found.cpu_beside == 100.0
    assert 1 <= found.link_beside <= 50.0


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
@pytest.mark.parametrize("has_seats", [False, True])
def test_the_pool_computes_as_many_bytes_as_were_asked_for(has_seats: bool) -> None:
    layout = layout_of(random_expert("Q4_0", "Q8_0"))
    has_seat = np.zeros((2, 20), bool)
    has_seat[:, ::2] = has_seats
    store = ExpertStore.create(StorePlan((StoreLayer("a.", layout), StoreLayer("b.", layout)), has_seat, True), CPU, 1)
    with Pool(2) as pool:
        side = PoolSide(store, pool)
        for wanted in (1, 50 * layout.total_bytes):
            taken, seconds = side.run(wanted)
            assert wanted <= taken < wanted + 8 * layout.total_bytes
            assert seconds > 0


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_without_an_expert_in_main_memory_there_is_nothing_to_measure() -> None:
    layout = layout_of(random_expert("Q4_0", "Q8_0"))
    store = ExpertStore.create(StorePlan((StoreLayer("a.", layout),), np.ones((1, 4), bool), True), CPU, 1)
    with Pool(1) as pool, pytest.raises(ValueError, match="no expert is in main memory"):
        PoolSide(store, pool)
