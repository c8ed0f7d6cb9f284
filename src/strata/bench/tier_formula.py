"""How long a window takes at best whose experts lie in three tiers: bytes over measured rates. Pure arithmetic.

One stream of windows, each waiting for the last:  t = (dense + hits) / V + misses / min(P + C, D) + layers * sync
Windows of several groups, side by side:           t = max(the card alone, misses / min(P + C, D))
"""

from dataclasses import dataclass

from strata.experts.share import DOORBELL_SECONDS

SYNC_US = DOORBELL_SECONDS * 1e6  # of each layer that asks the CPU


@dataclass(frozen=True)
class TierRates:
    """Gigabytes (10^9) a second of this PC, measured in the same run."""

    vram: float  # V: copying inside the card
    in_place: float  # P: experts in main memory by the card's kernel
    in_place_read: float  # the same by a kernel that only reads
    cpu: float  # C: experts by the CPU's threads
    cpu_read: float  # the same memory only read by them
    both: float  # D: P and C at once, added up
    both_in_place: float  # the card's part of it

    @property
    def misses(self) -> float:
        """What experts without a seat can be computed with."""
        return min(self.in_place + self.cpu, self.both)


@dataclass(frozen=True)
class TierBytes:
    """Of one window, on average."""

    dense: int  # what every row reads, state and cells included
    hits: float  # experts in seats
    misses: float  # experts without

    def at(self, hit_rate: float) -> "TierBytes":
        """The same window with another part of its experts in seats."""
        experts = self.hits + self.misses
        return TierBytes(self.dense, experts * hit_rate, experts * (1 - hit_rate))


def limit_ms(size: TierBytes, rates: TierRates, waiting_layers: float) -> float:
    """The least milliseconds of a window in which so many layers wait for the CPU."""
    card = (size.dense + size.hits) / rates.vram
    return (card + size.misses / rates.misses) / 1e6 + waiting_layers * SYNC_US / 1e3


def side_by_side_limit(seated_ms: float, size: TierBytes, rates: TierRates) -> float:
    """The least milliseconds of a window of every group, side by side, as long as there is enough to do for both sides.

    seated_ms: what the card takes for these windows alone where all experts have seats. size: of all of them.
    """
    return max(seated_ms, size.misses / rates.misses / 1e6)
