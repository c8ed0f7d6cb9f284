"""Which bytes of one run of memory are free. Pure integers.

Whoever takes some gets one range, or several where no gap is enough: as long as so many are free they are found. Free
ranges rise, and none touches the next one.
"""

from collections.abc import Sequence

Range = tuple[int, int]  # from the first byte to the one behind the last


class Extents:
    """The free ranges of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._free: list[Range] = [(0, size)] if size else []

    @property
    def free_bytes(self) -> int:
        """How many bytes nobody has."""
        return sum(stop - start for start, stop in self._free)

    def take(self, size: int) -> tuple[Range, ...] | None:
        """Ranges of `size` bytes together, as few as there may be; None: so many are not free.

        One gap if it is enough, the smallest such; otherwise the largest ones first.
        """
        if size > self.free_bytes:
            return None
        enough = [gap for gap in self._free if gap[1] - gap[0] >= size]
        gaps = [min(enough, key=_length)] if enough else sorted(self._free, key=_length, reverse=True)
        taken: list[Range] = []
        for start, stop in gaps:
            if size == 0:
                break
            end = min(stop, start + size)
            self._free.remove((start, stop))
            if end < stop:
                self._free.append((end, stop))
            taken.append((start, end))
            size -= end - start
        self._free.sort()
        return tuple(taken)

    def give_back(self, ranges: Sequence[Range]) -> None:
        """These are free again; each was taken and not given back since."""
        joined: list[Range] = []
        for start, stop in sorted((*self._free, *ranges)):
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        self._free = joined


def _length(gap: Range) -> int:
    return gap[1] - gap[0]
