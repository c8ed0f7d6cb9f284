"""Where the experts of some windows were computed, read from a stage's counters. Knows no time of a window."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.experts.swapping import Swapper
from strata.experts.tiers import ExpertTiers, TierCounts


@dataclass(frozen=True)
class WindowCounts:
    """Of one window, all layers together, on average; experts are distinct ones of each layer."""

    layers: int
    hits: float  # experts in seats
    in_place: float  # read by the card from main memory
    on_cpu: float
    requests: float  # layers that asked the CPU
    cpu_gb_per_s: float | None  # of experts, while the CPU was at a request; None: it was at none
    asked_us: (
        float  # between asking the CPU and collecting, of a layer; where the stream waits, the wait in between too
    )
    waited_us: float | None  # while collecting, of a layer; None where the stream waits: nobody clocks it
    swaps: float  # seats that changed hands

    @classmethod
    def all_hits(cls, distinct: Sequence[float]) -> "WindowCounts":
        """Where every expert has a seat; distinct: by layer."""
        return cls(len(distinct), sum(distinct), 0, 0, 0, None, 0, 0, 0)

    @property
    def misses(self) -> float:
        """Experts without a seat."""
        return self.in_place + self.on_cpu

    @property
    def hit_rate(self) -> float:
        """Experts in seats of all."""
        return self.hits / (self.hits + self.misses)


class TierCounter:
    """Counters between `start` and `stop`."""

    def __init__(self, tiers: ExpertTiers, swapper: Swapper, layers: int) -> None:
        self._tiers, self._swapper, self._layers = tiers, swapper, layers
        self._before = self._read()

    def start(self) -> None:
        """What was counted so far is not meant."""
        self._before = self._read()

    def stop(self, windows: int) -> WindowCounts:
        """Of each of so many windows since `start`."""
        before, now = self._before, self._read()
        cpu, cpu_before = now.counts.cpu, before.counts.cpu
        busy, size = cpu.busy_ns - cpu_before.busy_ns, cpu.bytes - cpu_before.bytes
        asked_us, waited_us = (
            (late - early) / (1e3 * windows * self._layers) for early, late in zip(before.times, now.times, strict=True)
        )
        return WindowCounts(
            self._layers,
            (now.counts.seats - before.counts.seats) / windows,
            (now.counts.in_place - before.counts.in_place) / windows,
            (now.counts.on_cpu - before.counts.on_cpu) / windows,
            (cpu.requests - cpu_before.requests) / windows,
            size / busy if busy else None,
            asked_us,
            None if self._tiers.waits_in_stream else waited_us,
            (now.swaps - before.swaps) / windows,
        )

    def _read(self) -> "_Read":
        """Waits for the device; the first call asks it for what the second one gets."""
        self._tiers.counts()
        times: list[int] = self._tiers.gpu_times.sum(dim=0).tolist()
        if self._tiers.asked.is_cuda:
            torch.cuda.synchronize()
        return _Read(self._tiers.counts(), times, self._swapper.swaps)


@dataclass(frozen=True)
class _Read:
    """All counters at one moment."""

    counts: TierCounts
    times: list[int]  # ns
    swaps: int
