"""One number a round: the median, and how far the others lie from it. Knows no unit."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A quantity over the rounds of a measurement."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one number a round."""
        return cls(statistics.median(values), min(values), max(values))
