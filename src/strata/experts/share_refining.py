"""What windows tell about the rates that the share is made of, and how they come to tell it: pure decisions.

Knows what both sides did in some windows; knows no counter, no device and no clock.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from strata.experts.share import FixedCosts, Rates, rate_beside, side_ends

REFINED_AT = (48, 96, 192)  # windows
TRIED_WINDOWS = 8  # before each of these, in which both sides get something whatever the rates say
DAMPING = 0.25  # how much of a rate the old one keeps when it is refined, on a logarithmic scale
MOST_CHANGE = 4.0  # a measurement that is further off says more about a pause of the PC than about its memory
LEAST_BYTES = 64 << 20  # of a side, below which its measurement says nothing
HEADROOM = 1.1  # a side alone is no faster than this times what it was when nothing else ran


def tried_table(table: NDArray[np.int32]) -> NDArray[np.int32]:
    """The table with which both sides are seen: of two misses or more each side gets a quarter, at least one expert.

    A side that the rates give nothing shows nothing in windows, so that wrong rates would stay wrong. A single miss is
    the CPU's, because only while it works is the link's time taken.
    """
    n = np.arange(len(table))
    least = np.maximum(n // 4, 1)
    return np.where(n < 2, 0, np.clip(table, least, np.maximum(n - least, least))).astype(np.int32)


@dataclass(frozen=True)
class Seen:
    """What both sides did at the same time in some windows, in all layers together that asked the CPU."""

    requests: int  # of the CPU
    cpu_bytes: int
    cpu_ns: int
    link_bytes: int
    link_ns: int  # 0: nobody could take the link's time


def refined(rates: Rates, at_load: Rates, costs: FixedCosts, seen: Seen) -> Rates:
    """Rates after windows in which this was seen; a side that did too little keeps its own.

    Both rates of a side move: what slows a memory down slows it down for one reader, too. No rate alone grows beyond
    what was ever seen of it: at load with some headroom, or now.
    """
    if seen.requests <= 0:
        return rates
    cpu_factor, link_factor = _factors(rates, costs, seen)
    cpu_most = max(at_load.cpu_alone * HEADROOM, rates.cpu_alone, _rate(seen.cpu_bytes, seen.cpu_ns))
    link_most = max(at_load.link_alone * HEADROOM, rates.link_alone, _rate(seen.link_bytes, seen.link_ns))
    cpu_alone, link_alone = min(cpu_most, rates.cpu_alone * cpu_factor), min(link_most, rates.link_alone * link_factor)
    return replace(
        rates,
        cpu_alone=cpu_alone,
        cpu_beside=min(cpu_alone, rates.cpu_beside * cpu_factor),
        link_alone=link_alone,
        link_beside=min(link_alone, rates.link_beside * link_factor),
    )


def _factors(rates: Rates, costs: FixedCosts, seen: Seen) -> tuple[float, float]:
    """Of the CPU's rates and the link's, from an average request.

    A side's whole time is held against what the rates make of it. That hardly tells how fast a CPU is beside a link
    that soon ends: where the link's time is known, the CPU's time beside it is held against its rate there.
    """
    cpu_bytes, link_bytes = seen.cpu_bytes / seen.requests, seen.link_bytes / seen.requests
    cpu_end, link_end = side_ends(rates, np.array(cpu_bytes), np.array(link_bytes), costs)
    cpu_s = seen.cpu_ns / seen.requests / 1e9 - costs.cpu_busy
    link_s = seen.link_ns / seen.requests / 1e9 - costs.link
    is_link_told = seen.link_bytes >= LEAST_BYTES and link_s > 0
    link_factor = _damped((float(link_end) - costs.link) / link_s) if is_link_told else 1.0
    if seen.cpu_bytes < LEAST_BYTES or cpu_s <= 0:
        return 1.0, link_factor
    if is_link_told:
        return _damped(rate_beside(rates.cpu_alone, cpu_bytes, cpu_s, link_s) / rates.cpu_beside), link_factor
    return _damped((float(cpu_end) - costs.cpu) / cpu_s), link_factor


def refinement_in_words(windows: int, before: Rates, after: Rates) -> str:
    """A log line: what so many windows showed."""
    if after == before:
        return f"after {windows} windows: too few experts were missing to judge the share: still {before.in_words()}"
    return f"after {windows} windows: {after.in_words()}; it was {before.in_words()}"


def _damped(change: float) -> float:
    return float(min(MOST_CHANGE, max(1 / MOST_CHANGE, change)) ** (1 - DAMPING))


def _rate(bytes_: int, ns: int) -> float:
    return bytes_ * 1e9 / ns if ns > 0 else 0.0
