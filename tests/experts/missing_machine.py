"""A PC whose windows miss experts: what its counters show of any share table, from rates that only it knows.

Everything follows from a seed. Stands in for `experts.tiers.ExpertTiers` where the share is refined.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from strata.experts.doorbell import DoorbellCounters
from strata.experts.share import DOORBELL_SECONDS, FixedCosts, Rates
from strata.experts.tiers import TierCounts

BLOB = 2_764_800
LAYERS = 12
CARD_S = 13e-6  # from the ring to collecting, with nothing in place


@dataclass
class MissingMachine:
    """Its windows run at once when they are launched; misses of a layer are binomial."""

    true: Rates
    costs: FixedCosts
    ranks: int = 10
    miss_rate: float = 0.5
    noise: float = 0.0  # of each time, its standard deviation
    waits_in_stream: bool = False
    tables: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpu_times = torch.zeros(1, 2, dtype=torch.int64)
        self._random = np.random.default_rng(7)
        self._in_place = self._on_cpu = self._requests = 0
        self._busy_s = 0.0

    def window(self) -> None:
        """Every layer with misses under the table of this moment."""
        for misses in self._random.binomial(self.ranks, self.miss_rate, LAYERS):
            in_place = self.tables[-1][misses]
            self._in_place, self._on_cpu = self._in_place + in_place, self._on_cpu + int(misses) - in_place
            if misses > in_place:
                cpu_s, card_s = self.times(int(misses), in_place)
                self._requests += 1
                self._busy_s += (cpu_s - DOORBELL_SECONDS) * self._noisy()
                self.gpu_times[0, 0] += round(max(cpu_s if self.waits_in_stream else 0.0, card_s) * self._noisy() * 1e9)

    def times(self, misses: int, in_place: int) -> tuple[float, float]:
        """Seconds of the CPU and of the card of a layer, which start together."""
        true, cpu_bytes, link_bytes = self.true, (misses - in_place) * BLOB, in_place * BLOB
        begin = max(self.costs.cpu, CARD_S)  # about: from here on both move, if both have something
        both = min(cpu_bytes / true.cpu_beside, link_bytes / true.link_beside)
        cpu_s = self.costs.cpu + both + (cpu_bytes - both * true.cpu_beside) / true.cpu_alone if cpu_bytes else 0.0
        card_s = begin + both + (link_bytes - both * true.link_beside) / true.link_alone if link_bytes else CARD_S
        return cpu_s, card_s

    def later_end(self, table: list[int]) -> float:
        """Seconds of a layer under a table, on average over the misses that its windows have."""
        misses = np.random.default_rng(8).binomial(self.ranks, self.miss_rate, 2000).tolist()
        return float(np.mean([max(self.times(n, table[n])) for n in misses]))

    def best_end(self) -> float:
        """The same with the best number in place for every number of misses."""
        best = [min(range(n + 1), key=lambda m, n=n: max(self.times(n, m))) for n in range(self.ranks + 1)]  # type: ignore[misc]
        return self.later_end(best)

    def counts(self) -> TierCounts:
        """See `CountedTiers`."""
        cpu = DoorbellCounters(self._requests, self._on_cpu, self._on_cpu * BLOB, round(self._busy_s * 1e9))
        return TierCounts(0, self._in_place, self._on_cpu, cpu)

    def set_share(self, table: torch.Tensor) -> None:
        """See `CountedTiers`."""
        self.tables.append(table.tolist())

    def _noisy(self) -> float:
        return float(np.exp(self._random.normal(0.0, self.noise)))
