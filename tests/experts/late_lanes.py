"""The pretended card of `late_streams` with a lane of the main road for each group, whose windows run side by side.

A window looks at its group's own addresses; those that were set since come in front of it.
"""

from collections import deque

import torch

from strata.experts.cache import ExpertId
from strata.experts.store import ExpertStore
from strata.experts.streams import Mark
from tests.experts.late_streams import LateCard, LateMark, LateStreams, Work


class LaneMark(LateMark):
    """Reached when every lane has come to it."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.missing = lanes

    def reach(self) -> bool:
        self.missing -= 1
        self.was_reached = self.missing == 0
        return True


class LaneStreams(LateStreams):
    """See `Streams`; `main` is the lane of the group that is launched now."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes: list[deque[Work]] = [deque() for _ in range(lanes)]
        self.main = self.lanes[0]

    def mark_main(self) -> Mark:
        self.called()
        mark = LaneMark(len(self.lanes))
        for lane in self.lanes:
            lane.append(mark.reach)
        return mark

    def wait(self) -> None:
        while self.side or any(self.lanes):
            moved = [self.advance(road) for road in (self.side, *self.lanes)]
            assert any(moved), "the roads wait for each other"


class LaneCard(LateCard):
    """Tables of each group, and windows over them."""

    def __init__(self, store: ExpertStore, contents: dict[ExpertId, torch.Tensor], lanes: int) -> None:
        super().__init__(store, contents)
        self.streams: LaneStreams = LaneStreams(lanes)
        self._tables = [(store.resident.copy(), store.in_ram.copy()) for _ in range(lanes)]
        self._pending: list[list[tuple[int, ExpertId, int]]] = [[] for _ in range(lanes)]

    def choose(self, lane: int) -> None:
        """The group that is launched next."""
        self.lane = lane
        self.streams.main = self.streams.lanes[lane]
        self.resident, self.in_place = self._tables[lane]

    def set_resident(self, layer: int, expert: int, address: int) -> None:
        self.streams.called()
        for pending in self._pending:
            pending.append((0, ExpertId(layer, expert), address))

    def set_in_ram(self, layer: int, expert: int, address: int) -> None:
        self.streams.called()
        self.cpu[layer, expert] = address
        for pending in self._pending:
            pending.append((1, ExpertId(layer, expert), address))

    def launch(self, experts: list[ExpertId]) -> None:
        """Of the chosen group."""
        tables, seats, places = self._tables[self.lane], list[int](), list[int]()
        changes, self._pending[self.lane] = self._pending[self.lane], []

        def flush() -> bool:
            for table, expert, address in changes:
                tables[table][expert] = address
            return True

        def begin() -> bool:
            seats.extend(int(tables[0][each]) for each in experts)
            places.extend(int(tables[1][each]) for each in experts)
            for each in experts:
                self.asked[each] += 1
            return True

        def look() -> bool:
            for each, seat, place in zip(experts, seats, places, strict=True):
                self._look(each, seat, place)
            return True

        self.streams.main.extend((flush, begin, look, look, look))
