"""Routers whose experts are as popular as the law of `experts/synthetic_trace.py` says, in one conversation's topic.

Knows how often a row takes an expert and how large its router's row must be for that; knows no model and no tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from strata.experts.synthetic_trace import RoutingLaw, RoutingShape, draw_routing

DRAWN_ROWS = 4096
ONE_TOPIC = RoutingLaw(topic_tokens=1 << 30)  # its first end is drawn: far behind the rows
MOST_TAKEN = 0.45  # a logit that is as often below 0 as above is never among the best for more than half of the rows


def popularity(experts: int, ranks: int, law: RoutingLaw = ONE_TOPIC) -> NDArray[np.float64]:
    """The share of rows that takes each expert [experts], the hottest first; drawn, so small ones are rough."""
    ids = draw_routing(law, RoutingShape(DRAWN_ROWS, 1, 1, experts, ranks))
    counts = np.bincount(ids.ravel(), minlength=experts).astype(np.float64)
    return np.sort(counts)[::-1] / DRAWN_ROWS


@dataclass(frozen=True)
class LawfulRouting:
    """What windows of rows that are each for itself take by the law."""

    distinct: dict[int, float]  # different experts of a layer, by the rows of a window
    hottest_quarter: float  # the share of all choices that a quarter, and half, of the experts get
    hottest_half: float

    @classmethod
    def of(cls, experts: int, ranks: int, rows: Sequence[int]) -> "LawfulRouting":
        """For windows of these rows."""
        shares = popularity(experts, ranks)
        distinct = {count: float((1 - (1 - shares) ** count).sum()) for count in rows}
        quarter, half = (float(shares[: round(part * experts)].sum() / ranks) for part in (0.25, 0.5))
        return cls(distinct, quarter, half)


def router_scales(experts: int, ranks: int) -> NDArray[np.float32]:
    """By how much each router row is to be longer than a random one of length 1 [experts], the hottest first.

    An expert's logit is then normal with this deviation, and above one bound for all, 1, as often as the expert is
    popular. What a softmax makes of the logits is another matter: their size is chosen for the order alone.
    """
    normal = NormalDist()
    shares = popularity(experts, ranks).clip(0.5 / DRAWN_ROWS, MOST_TAKEN)
    return np.array([-1 / normal.inv_cdf(share) for share in shares], np.float32)
