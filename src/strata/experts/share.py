"""How many of a layer's missing experts the GPU reads in place while the CPU computes the others: rates to a table.

Pure: knows bytes and seconds; measures nothing. See `share_measuring` for where rates come from.
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from strata.errors import EngineError


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
    """Seconds that a layer's misses cost a side however few they are."""

    cpu: float = DOORBELL_SECONDS  # from ringing to being answered, but for the experts' bytes
    link: float = FIRST_READ_SECONDS

    @property
    def cpu_busy(self) -> float:
        """The part of it in which the CPU's threads are already busy with the request."""
        return max(0.0, self.cpu - DOORBELL_SECONDS)


def without_fixed_cost(rates: Rates, single_rate: float, expert_bytes: float, listed: int) -> tuple[Rates, FixedCosts]:
    """Rates of requests of `listed` experts, without what each request costs the CPU beside its bytes; and that cost.

    single_rate: bytes a second of requests of one expert. A line through both sizes tells the cost. Requests are
    calls of this process here: a call takes below 5 us, ringing and being answered 3.5, so one stands for the other.
    """
    single_s, list_s = expert_bytes / single_rate, listed * expert_bytes / rates.cpu_alone
    fixed = (listed * single_s - list_s) / (listed - 1) if listed > 1 else DOORBELL_SECONDS
    fixed = min(max(DOORBELL_SECONDS, fixed), single_s / 2, list_s / 2)  # the rest is experts, whatever a clock says

    def moving(rate: float) -> float:
        return listed * expert_bytes / (listed * expert_bytes / rate - fixed)

    found = replace(rates, cpu_alone=moving(rates.cpu_alone), cpu_beside=moving(rates.cpu_beside))
    return found, FixedCosts(max(DOORBELL_SECONDS, fixed))


def share_table(
    rates: Rates, blob_bytes: int, most: int, costs: FixedCosts = FixedCosts(), card_s: float = 0.0
) -> NDArray[np.int32]:
    """int32 [most + 1]: of n distinct misses so many are read in place that the later side ends earliest.

    Of equally good numbers the smallest: the link is needed for swaps, too. Only whole experts are split, so that few
    misses all go to the faster side. card_s: seconds of a layer in which the card cannot read, because it computes for
    another group of slots meanwhile; what it reads holds that group up as long.
    """
    n = np.arange(most + 1)[:, None]
    in_place = np.arange(most + 1)[None, :]
    cpu, link = side_ends(rates, blob_bytes * (n - in_place).clip(0), blob_bytes * in_place, costs)
    ends = np.maximum(cpu, link + np.where(in_place > 0, card_s, 0.0))
    ends = np.where(in_place <= n, ends, np.inf)
    is_best = ends <= ends.min(axis=1, keepdims=True) * (1 + 1e-9)  # equal but for rounding
    return np.argmax(is_best, axis=1).astype(np.int32)  # the first of them


def fixed_share_table(share: float, most: int) -> NDArray[np.int32]:
    """int32 [most + 1]: floor(n * share) of n misses; `share` is 0 to 1."""
    return np.floor(np.arange(most + 1) * share + 1e-9).astype(np.int32)  # 10 * 0.3 is a little less than 3


def side_ends(
    rates: Rates, cpu_bytes: NDArray[np.number], link_bytes: NDArray[np.number], costs: FixedCosts
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds until the CPU and the link are done, which start together, 0 of a side with nothing to do.

    The later one goes on alone.
    """
    cpu = np.where(cpu_bytes > 0, costs.cpu + cpu_bytes / rates.cpu_beside, 0.0)
    link = np.where(link_bytes > 0, costs.link + link_bytes / rates.link_beside, 0.0)
    first = np.minimum(cpu, link)  # 0 where a side has nothing: the other one is alone from the start
    cpu_left = _seconds_alone(cpu - first, cpu_bytes, rates.cpu_beside, rates.cpu_alone)
    link_left = _seconds_alone(link - first, link_bytes, rates.link_beside, rates.link_alone)
    return first + cpu_left, first + link_left


def rate_beside(alone: float, bytes_: float, seconds: float, other_seconds: float) -> float:
    """Bytes a second of a side while both were at it: both began at once, and the later one went on alone at its rate.

    That rate may be wrong: then this is what both together would need, below 0 or above the rate alone.
    """
    together = min(seconds, other_seconds)
    return (bytes_ - alone * (seconds - together)) / together


def _seconds_alone(
    left: NDArray[np.float64], size: NDArray[np.number], beside: float, alone: float
) -> NDArray[np.float64]:
    """What is left of a side if the other has ended; `left` seconds if it had not. Fixed costs get no shorter."""
    moving = np.minimum(left, size / beside)
    return left - moving * (1 - beside / alone)
