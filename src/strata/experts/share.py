"""How many of a layer's missing experts the GPU reads in place while the CPU computes the others: rates to a table.

Pure: knows bytes and seconds; measures nothing. See `share_measuring` for where rates come from.
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from strata.errors import EngineError

REFINED_AT = (48, 96, 192)  # windows
DAMPING = 0.5  # how much of a rate the old one keeps when it is refined, on a logarithmic scale
MOST_CHANGE = 4.0  # a measurement that is further off says more about a pause of the PC than about its memory
LEAST_BYTES = 64 << 20  # of a side, below which its measurement says nothing


@dataclass(frozen=True)
class Rates:
    """Bytes a second of experts that two sides get through, each alone and both at once.

    Raises EngineError for less than a byte, or for a side that is slower alone.
    """

    cpu_alone: float
    link_alone: float
    cpu_beside: float  # while the link is in use
    link_beside: float  # while the CPU computes

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 1 <= value < math.inf:
                raise EngineError(f"rate {field.name} is {value} bytes a second; at least 1 works")
        if self.cpu_beside > self.cpu_alone or self.link_beside > self.link_alone:
            raise EngineError(f"a side is faster beside the other than alone: {self.in_words()}")

    def in_words(self) -> str:
        """For a log line."""
        both = self.cpu_beside + self.link_beside
        return (
            f"CPU {self.cpu_alone / 1e9:.1f} GB/s, link {self.link_alone / 1e9:.1f}, both at once {both / 1e9:.1f} "
            f"({self.cpu_beside / 1e9:.1f} + {self.link_beside / 1e9:.1f})"
        )


# Ringing and being answered through pinned memory with nothing computed: measured on one H200 machine with a prototype,
# before the project began. Nothing measures it on another PC.
DOORBELL_SECONDS = 3.5e-6
# Until the first bytes of a read in place are there: an estimate of a PCIe round trip.
FIRST_READ_SECONDS = 2e-6


@dataclass(frozen=True)
class FixedCosts:
    """Seconds that a layer's misses cost a side however few they are; the defaults are the same on every PC."""

    cpu: float = DOORBELL_SECONDS
    link: float = FIRST_READ_SECONDS


@dataclass(frozen=True)
class Measured:
    """What one side did in some windows."""

    bytes_read: int
    busy_ns: int

    @property
    def rate(self) -> float | None:
        """Bytes a second; None if that is too little to tell."""
        if self.bytes_read < LEAST_BYTES or self.busy_ns <= 0:
            return None
        return self.bytes_read * 1e9 / self.busy_ns


def share_table(rates: Rates, blob_bytes: int, most: int, costs: FixedCosts = FixedCosts()) -> NDArray[np.int32]:
    """int32 [most + 1]: of n distinct misses so many are read in place that the later side ends earliest.

    Of equally good numbers the smallest: the link is needed for swaps, too. Only whole experts are split, so that few
    misses all go to the faster side.
    """
    n = np.arange(most + 1)[:, None]
    in_place = np.arange(most + 1)[None, :]
    ends = later_end(rates, blob_bytes * (n - in_place).clip(0), blob_bytes * in_place, costs)
    ends = np.where(in_place <= n, ends, np.inf)
    is_best = ends <= ends.min(axis=1, keepdims=True) * (1 + 1e-9)  # equal but for rounding
    return np.argmax(is_best, axis=1).astype(np.int32)  # the first of them


def fixed_share_table(share: float, most: int) -> NDArray[np.int32]:
    """int32 [most + 1]: floor(n * share) of n misses; `share` is 0 to 1."""
    return np.floor(np.arange(most + 1) * share + 1e-9).astype(np.int32)  # 10 * 0.3 is a little less than 3


def later_end(
    rates: Rates, cpu_bytes: NDArray[np.integer], link_bytes: NDArray[np.integer], costs: FixedCosts
) -> NDArray[np.float64]:
    """Seconds until both sides are done, which start together; the one that is left goes on at its rate alone."""
    cpu = np.where(cpu_bytes > 0, costs.cpu + cpu_bytes / rates.cpu_beside, 0.0)
    link = np.where(link_bytes > 0, costs.link + link_bytes / rates.link_beside, 0.0)
    first = np.minimum(cpu, link)  # 0 where a side has nothing: the other one is alone from the start
    cpu_left = _seconds_alone(cpu - first, cpu_bytes, rates.cpu_beside, rates.cpu_alone)
    link_left = _seconds_alone(link - first, link_bytes, rates.link_beside, rates.link_alone)
    return first + cpu_left + link_left


def _seconds_alone(
    left: NDArray[np.float64], size: NDArray[np.integer], beside: float, alone: float
) -> NDArray[np.float64]:
    """What is left of a side if the other has ended; `left` seconds if it had not. Fixed costs get no shorter."""
    moving = np.minimum(left, size / beside)
    return left - moving * (1 - beside / alone)


def refined(rates: Rates, cpu: Measured, link: Measured) -> Rates:
    """Rates after windows in which the sides did this at the same time; a side that did too little keeps its own.

    Its rate alone moves with it: what slows a memory down slows it down for one reader, too.
    """
    cpu_factor, link_factor = _factor(rates.cpu_beside, cpu.rate), _factor(rates.link_beside, link.rate)
    return replace(
        rates,
        cpu_alone=rates.cpu_alone * cpu_factor,
        cpu_beside=rates.cpu_beside * cpu_factor,
        link_alone=rates.link_alone * link_factor,
        link_beside=rates.link_beside * link_factor,
    )


def refinement_in_words(windows: int, before: Rates, after: Rates) -> str:
    """A log line: what so many windows showed."""
    if after == before:
        return f"after {windows} windows: too few experts were missing to judge the share: still {before.in_words()}"
    return f"after {windows} windows: {after.in_words()}; it was {before.in_words()}"


def _factor(believed: float, measured: float | None) -> float:
    if measured is None:
        return 1.0
    change = min(MOST_CHANGE, max(1 / MOST_CHANGE, measured / believed))
    return float(change ** (1 - DAMPING))
