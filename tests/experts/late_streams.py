"""A pretended card: two roads whose work runs late, in any order that they allow; tables; windows that look at bytes.

A window takes its tables when it begins and reads bytes until it ends, as a graph on a card does.
"""

from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from strata.experts.cache import ExpertId
from strata.experts.store import ExpertStore
from strata.experts.streams import Mark

Work = Callable[[], bool]  # False: it cannot run yet, nor can what stands behind it


class LateMark:
    def __init__(self) -> None:
        self.was_reached = False

    def is_passed(self) -> bool:
        return self.was_reached

    def wait(self) -> None:
        raise AssertionError("whoever moves experts waits for no device")

    def seconds_since(self, earlier: "LateMark") -> float:
        return 0.0

    def reach(self) -> bool:
        self.was_reached = True
        return True


class LateStreams:
    """See `Streams`. `fail_at`: which call from now on, counted from 1, is refused."""

    def __init__(self) -> None:
        self.main: deque[Work] = deque()
        self.side: deque[Work] = deque()
        self.calls = 0
        self.fail_at: int | None = None
        self.copied = 0

    def mark_main(self) -> Mark:
        return self._mark(self.main)

    def mark_side(self) -> Mark:
        return self._mark(self.side)

    def hold_side(self, mark: Mark) -> None:
        self.called()
        self.side.append(mark.is_passed)

    def copy_beside(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.called()
        middle = len(source) // 2  # a copy takes time: its halves arrive apart
        self.side.append(_always(lambda: target[:middle].copy_(source[:middle])))
        self.side.append(_always(lambda: target[middle:].copy_(source[middle:])))
        self.copied += 1

    def copy_behind(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.called()
        self.main.append(_always(lambda: target.copy_(source)))

    def wait(self) -> None:
        while self.side or self.main:
            assert self.advance(self.side) or self.advance(self.main), "the roads wait for each other"

    def advance(self, road: deque[Work]) -> bool:
        """Run the next of a road; whether there was something that could run."""
        if road and road[0]():
            road.popleft()
            return True
        return False

    def called(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError(f"call {self.calls} is refused")

    def _mark(self, road: deque[Work]) -> Mark:
        self.called()
        mark = LateMark()
        road.append(mark.reach)
        return mark


class LateCard:
    """Tables of a store's experts, and windows over them."""

    def __init__(self, store: ExpertStore, contents: dict[ExpertId, torch.Tensor]) -> None:
        self.streams = LateStreams()
        self.asked = torch.zeros(store.resident.shape, dtype=torch.int32)
        self.resident, self.in_place = store.resident.copy(), store.in_ram.copy()  # changed on the main road
        self.cpu = store.in_ram.copy()  # changed at once
        self.looks = 0
        self._store, self._contents = store, contents

    def set_resident(self, layer: int, expert: int, address: int) -> None:
        self.streams.called()
        self.streams.main.append(_always(lambda: self.resident.__setitem__((layer, expert), address)))

    def set_in_ram(self, layer: int, expert: int, address: int) -> None:
        self.streams.called()
        self.cpu[layer, expert] = address
        self.streams.main.append(_always(lambda: self.in_place.__setitem__((layer, expert), address)))

    def launch(self, experts: list[ExpertId]) -> None:
        """A window that asks for these; those without a seat are read in place and on the CPU, both."""
        seats: list[int] = []
        places: list[int] = []

        def begin() -> None:
            seats.extend(int(self.resident[each]) for each in experts)
            places.extend(int(self.in_place[each]) for each in experts)
            for each in experts:
                self.asked[each] += 1

        def look() -> None:
            for each, seat, place in zip(experts, seats, places, strict=True):
                self._look(each, seat, place)

        self.streams.main.extend(_always(call) for call in (begin, look, look, look))

    def drain(self) -> None:
        """Everything that was asked for is done."""
        self.streams.wait()

    def require_whole(self) -> None:
        """Every expert can be found, with its bytes."""
        for expert in self._contents:
            self._look(expert, int(self.resident[expert]), int(self.in_place[expert]))

    def _look(self, expert: ExpertId, seat: int, place: int) -> None:
        addresses = [seat] if seat else [place, int(self.cpu[expert])]
        for address in addresses:
            assert address, f"{expert} is in neither place"
            found = bytes_at(address, self._contents[expert].numel())
            assert torch.equal(found, self._contents[expert]), f"{expert} has other bytes"
        self.looks += 1


def bytes_at(address: int, size: int) -> torch.Tensor:
    """Memory of this process, uint8 [size]: a view."""
    described = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}
    return torch.from_numpy(np.asarray(type("Memory", (), {"__array_interface__": described})()))


def _always(call: Callable[[], object]) -> Work:
    def run() -> bool:
        call()
        return True

    return run
