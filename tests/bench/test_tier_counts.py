"""Counters of a stage between two moments become numbers of one window."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strata.bench.tier_counts import TierCounter, WindowCounts
from strata.experts.doorbell import DoorbellCounters
from strata.experts.tiers import TierCounts


class PlayedTiers:
    """Counters as a GPU gives them: each call asks for what the next one tells."""

    def __init__(self, *, waits_in_stream: bool = False) -> None:
        self.waits_in_stream = waits_in_stream
        self.now = TierCounts(0, 0, 0, DoorbellCounters(0, 0, 0, 0))
        self.asked = torch.zeros(1)
        self.gpu_times = torch.tensor([[0, 0]])
        self._told = self.now

    def counts(self) -> TierCounts:
        told, self._told = self._told, self.now
        return told


def test_what_was_counted_before_the_start_is_not_meant_and_the_rest_is_of_one_window() -> None:
    tiers: Any = PlayedTiers()
    swapper: Any = SimpleNamespace(swaps=5)
    counter = TierCounter(tiers, swapper, layers=4)
    tiers.now, tiers.gpu_times = TierCounts(100, 10, 10, DoorbellCounters(7, 10, 999, 999)), torch.tensor([[50, 50]])
    counter.start()
    tiers.now = TierCounts(300, 30, 90, DoorbellCounters(47, 90, 8999, 1099))
    tiers.gpu_times, swapper.swaps = torch.tensor([[500_050, 50_050], [300_000, 30_000]]), 25
    found = counter.stop(windows=10)
    assert (found.hits, found.in_place, found.on_cpu, found.requests) == (20, 2, 8, 4)
    assert found.cpu_gb_per_s == 80  # 8,000 bytes in 100 ns
    assert (found.asked_us, found.waited_us, found.swaps) == (20, 2, 2)
    assert (found.misses, found.hit_rate) == (10, pytest.approx(2 / 3))


def test_a_cpu_that_was_never_asked_has_no_speed() -> None:
    tiers: Any = PlayedTiers()
    swapper: Any = SimpleNamespace(swaps=0)
    counter = TierCounter(tiers, swapper, layers=1)
    tiers.now = TierCounts(4, 0, 0, DoorbellCounters(0, 0, 0, 0))
    assert counter.stop(windows=1).cpu_gb_per_s is None


def test_where_the_stream_waits_its_wait_is_part_of_the_time_up_to_collecting() -> None:
    tiers: Any = PlayedTiers(waits_in_stream=True)
    swapper: Any = SimpleNamespace(swaps=0)
    counter = TierCounter(tiers, swapper, layers=2)
    tiers.gpu_times = torch.tensor([[90_000, 1000]])
    found = counter.stop(windows=1)
    assert (found.asked_us, found.waited_us) == (45, None)


def test_without_tiers_every_expert_is_a_hit() -> None:
    found = WindowCounts.all_hits((10.0, 12.0))
    assert (found.layers, found.hits, found.hit_rate, found.requests) == (2, 22, 1, 0)
