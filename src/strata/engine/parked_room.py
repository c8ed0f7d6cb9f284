"""Main memory for parked conversations of a card's slots: one run of bytes, made and pinned when the model is loaded.

Knows bytes and who has them; no state. A conversation's bytes lie in ranges, mostly one, and are written and read by
copies in the order of the launches, so ranges that are given back may be taken while a copy out of them is to run.
"""

from collections.abc import Iterator

import torch

from strata.engine.parked_extents import Extents, Range
from strata.errors import ModelError
from strata.experts.host_memory import HostMemory, Pinning, anonymous_memory, take_host_memory
from strata.hardware import read_cpu

GIB = 1 << 30


class ParkedRoom:
    """See the module. `notice`: a sentence for the user if the memory is not as it was meant to be."""

    def __init__(self, size: int, pinning: Pinning | None) -> None:
        """pinning: of memory that a card copies to; None: there is no card. Without memory there is no room."""
        self.notice: str | None = None
        self.is_pinned = False
        self._held: HostMemory | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        try:
            self._take(size, pinning)
        except ModelError:
            self.notice = (
                f"the system does not give {size / GIB:.1f} GiB for parked conversations: those whose slots are wanted "
                "are read again; a smaller --parked-gib needs less"
            )
        self.size = self._memory.numel()
        self._extents = Extents(self.size)

    @property
    def free_bytes(self) -> int:
        """How many bytes nobody has."""
        return self._extents.free_bytes

    def take(self, size: int) -> "ParkedBytes | None":
        """So many bytes; None: they are not free."""
        ranges = self._extents.take(size)
        if ranges is None:
            return None
        return ParkedBytes(self, ranges, [self._memory[start:stop] for start, stop in ranges])

    def give_back(self, ranges: tuple[Range, ...]) -> None:
        """These are free again."""
        self._extents.give_back(ranges)

    def _take(self, size: int, pinning: Pinning | None) -> None:
        if pinning is None:
            self._memory = anonymous_memory(size)
            return
        self._held = take_host_memory([size], read_cpu().usable_cores, pinning)
        (self._memory,), self.is_pinned = self._held.pieces, self._held.is_pinned
        if size and not self.is_pinned:
            self.notice = (
                f"the system does not pin the {size / GIB:.1f} GiB for parked conversations: the card waits for each "
                "one that is moved; a higher limit of locked memory helps (`ulimit -l unlimited`, for a container "
                "`--ulimit memlock=-1`)"
            )


class ParkedBytes:
    """Bytes of a room that somebody has until `release`, counted from 0."""

    def __init__(self, room: ParkedRoom, ranges: tuple[Range, ...], views: list[torch.Tensor]) -> None:
        self._room, self._ranges, self._views = room, ranges, views

    def views(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        """uint8 views that hold these bytes one after another."""
        for view in self._views:
            if start < len(view) and stop > 0:
                yield view[max(0, start) : stop]
            start, stop = start - len(view), stop - len(view)

    def release(self) -> None:
        """They are free again; once more changes nothing."""
        self._room.give_back(self._ranges)
        self._ranges, self._views = (), []
