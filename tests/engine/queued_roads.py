"""Roads of a hand-off whose work is put off, and then done in any order that marks and holds allow. Knows no test."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch

from strata.engine.hand_off import Road

Work = Callable[[], object]


@dataclass(frozen=True)
class Mark:
    """A place on a road."""

    number: int


@dataclass(frozen=True)
class Hold:
    """What follows waits for a mark."""

    mark: int


class QueuedRoads:
    """See `hand_off.Roads`. What a stage does itself is put onto its road by `launch`."""

    def __init__(self) -> None:
        self._queues: dict[Road, deque[Work | Mark | Hold]] = {road: deque() for road in Road}
        self._marks = 0
        self._passed: set[int] = set()

    def mark(self, road: Road) -> int:
        self._marks += 1
        self._queues[road].append(Mark(self._marks))
        return self._marks

    def hold(self, road: Road, mark: int) -> None:
        self._queues[road].append(Hold(mark))

    def copy(self, road: Road, found: torch.Tensor, wanted: torch.Tensor) -> None:
        self.launch(road, lambda: wanted.copy_(found))

    def launch(self, road: Road, work: Work) -> None:
        """Something that a stage does on this road."""
        self._queues[road].append(work)

    def run(self, order: Random) -> None:
        """Everything, one thing at a time, from a road that may go on."""
        while any(self._queues.values()):
            ready = [road for road, queue in self._queues.items() if queue and not self._is_held(queue[0])]
            assert ready, "every road waits for another one"
            first = self._queues[order.choice(ready)].popleft()
            if isinstance(first, Mark):
                self._passed.add(first.number)
            elif not isinstance(first, Hold):
                first()

    def _is_held(self, first: Work | Mark | Hold) -> bool:
        return isinstance(first, Hold) and first.mark not in self._passed
