"""Measuring at load finds the rates of two sides that slow each other down, whatever else runs, and is soon over."""

from collections.abc import Collection
from dataclasses import astuple, dataclass

import numpy as np
import pytest
import torch

from strata.experts import share_measuring
from strata.experts.blob import layout_of
from strata.experts.share import Rates
from strata.experts.share_measuring import (
    PoolSide,
    listed_experts,
    measure_costs,
    measure_rates,
    one_by_one,
    rates_beside,
    typical_best,
)
from strata.experts.store import ExpertStore
from strata.experts.store_plan import StoreLayer, StorePlan
from strata.native import library
from strata.native.pool import Pool
from tests.experts.experts import random_expert

GB = 10**9
TRUE = Rates(106.0 * GB, 50.0 * GB, 82.0 * GB, 45.0 * GB)
CPU = torch.device("cpu")


FIXED_S = 12e-6  # of each request of the CPU


class TwoSides:
    """A clock, and two sides that share a memory: the link runs while the CPU does, and ends alone.

    disturbed: which measurements behind the two of warming up something else on the PC doubles the time of.
    """

    def __init__(self, rates: Rates, disturbed: Collection[int] = ()) -> None:
        self.rates, self.disturbed = rates, disturbed
        self.now, self.runs = 0.0, -2
        self.link_bytes = 0
        self.link_seconds: float | None = None

    def run(self, bytes_: int) -> tuple[int, float]:
        rates, cpu_s = self.rates, bytes_ / self.rates.cpu_alone
        if self.link_bytes and self.link_seconds is None:
            together = min(bytes_ / rates.cpu_beside, self.link_bytes / rates.link_beside)
            cpu_s = together + (bytes_ - together * rates.cpu_beside) / rates.cpu_alone
            self.link_seconds = together + (self.link_bytes - together * rates.link_beside) / rates.link_alone
        cpu_s *= 2 if self.runs in self.disturbed else 1
        self.now, self.runs = self.now + cpu_s, self.runs + 1
        return bytes_, cpu_s

    def start(self, bytes_: int) -> None:
        self.link_bytes, self.link_seconds = bytes_, None

    def wait(self) -> tuple[int, float]:
        seconds = self.link_bytes / self.rates.link_alone if self.link_seconds is None else self.link_seconds
        self.now += seconds
        bytes_, self.link_bytes = self.link_bytes, 0
        return bytes_, seconds


@dataclass
class Requests:
    """The CPU with requests of so many bytes, each of which costs FIXED_S more."""

    request_bytes: float
    rate: float

    def run(self, bytes_: int) -> tuple[int, float]:
        return bytes_, bytes_ / self.rate + bytes_ / self.request_bytes * FIXED_S


@pytest.mark.parametrize("true", [TRUE, Rates(20.0 * GB, 12.0 * GB, 11.0 * GB, 9.0 * GB)])
def test_rates_are_found_in_well_under_a_second(true: Rates) -> None:
    sides = TwoSides(true)
    assert astuple(measure_rates(sides, sides)) == pytest.approx(astuple(true), rel=0.01)
    assert sides.now < 0.8


@pytest.mark.parametrize("disturbed", [{0, 1, 2, 3, 4, 5}, {1, 3, 5}, {0, 2, 4, 9}, {4, 5, 6, 7, 8, 9}])
def test_something_else_that_runs_in_three_passes_of_five_is_not_seen(disturbed: set[int]) -> None:
    sides = TwoSides(TRUE, disturbed)
    assert astuple(measure_rates(sides, sides)) == pytest.approx(astuple(TRUE), rel=0.01)


def test_one_measurement_that_is_too_good_is_not_believed() -> None:
    assert typical_best([3.0, 9.0, 2.0, 4.0], float) == 4


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_what_a_request_costs_is_told_by_the_same_experts_one_by_one() -> None:
    lists = listed_experts(store_of(np.zeros((2, 20), bool)), 8)
    singles = one_by_one(lists)
    assert [each.blobs[0].data_ptr() for each in singles] == [blob.data_ptr() for each in lists for blob in each.blobs]
    assert all(len(each.blobs) == 1 for each in singles)
    size, rate = sum(each.total_bytes for each in singles) / len(singles), 0.1 * GB
    listed_rate = 8 * size / (8 * size / rate + FIXED_S)
    rates, costs = measure_costs(Rates(listed_rate, 1.0 * GB, listed_rate, 1.0 * GB), Requests(size, rate), lists)
    assert costs.cpu == pytest.approx(FIXED_S)
    assert rates.cpu_alone == pytest.approx(rate)


def test_a_side_is_never_faster_beside_the_other() -> None:
    found = rates_beside(100.0, 50.0, (1000, 5.0), (200, 8.0))  # a noisy clock
    assert found.cpu_beside == 100.0
    assert 1 <= found.link_beside <= 50.0


LAYOUTS = layout_of(random_expert("Q4_0", "Q8_0")), layout_of(random_expert("Q8_0", "Q8_0"))


def store_of(has_seat: np.ndarray) -> ExpertStore:
    """Layers of two kinds of blobs by turns; no expert is in both memories."""
    layers = tuple(StoreLayer(f"{n}.", LAYOUTS[n % 2]) for n in range(len(has_seat)))
    return ExpertStore.create(StorePlan(layers, has_seat, True), CPU, 1)


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_the_pool_computes_the_lists_one_after_another_and_as_many_bytes_as_were_asked_for() -> None:
    lists = listed_experts(store_of(np.zeros((2, 20), bool)), 8)
    sizes = [each.total_bytes for each in lists]
    assert len(set(sizes)) == 2
    with Pool(2) as pool:
        side = PoolSide(lists, pool)
        side.out.fill_(torch.nan)
        taken, seconds = side.run(1)
        assert taken == sizes[0]
        assert seconds > 0
        assert not side.out.isnan().any(), "all experts of a list are computed"
        assert side.run(3 * sum(sizes))[0] == 3 * sum(sizes), "every list as often as the others"


def test_lists_have_no_expert_in_common_and_are_of_layers_all_over_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    has_seat = np.zeros((6, 20), bool)
    has_seat[:, ::2] = True
    has_seat[5] = True
    store = store_of(has_seat)
    lists = listed_experts(store, 4)
    assert [each.layer for each in lists] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    addresses = [blob.data_ptr() for each in lists for blob in each.blobs]
    assert len(set(addresses)) == len(addresses) == 4 * len(lists)
    assert set(addresses) <= set(store.in_ram.flatten().tolist())
    assert all(each.layout is store.layout(each.layer) for each in lists)
    monkeypatch.setattr(share_measuring, "MOST_LISTS", 3)
    assert [each.layer for each in listed_experts(store, 4)] == [0, 1, 3]


def test_where_no_layer_has_as_many_experts_in_main_memory_lists_are_shorter() -> None:
    has_seat = np.ones((2, 4), bool)
    has_seat[1, 1:3] = False
    (listed,) = listed_experts(store_of(has_seat), 3)
    assert (listed.layer, len(listed.blobs)) == (1, 2)
    with pytest.raises(ValueError, match="no expert is in main memory"):
        listed_experts(store_of(np.ones((1, 4), bool)), 3)
