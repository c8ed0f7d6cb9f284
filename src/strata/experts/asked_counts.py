"""What a card counted, read without waiting for it: how many decode windows asked for each expert since the last time.

Knows counters that only rise and who raised them, windows or reads; knows not what the numbers are for.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from strata.experts.streams import Mark, Streams


class AskedCounts:
    """Copies of `asked` behind the windows, one under way at most. A prompt's rows are counted there and not here:

    by replay a cache that follows them too is worse (docs/log.md, 2026-11-30).
    """

    def __init__(self, asked: torch.Tensor, streams: Streams) -> None:
        """asked: int32 [layers, experts] on the device, raised by every launch; may wrap."""
        self._asked = asked
        self._streams = streams
        self._room = torch.empty(asked.shape, dtype=torch.int32, pin_memory=asked.is_cuda)
        self._last = asked.cpu().numpy().copy()
        self._mark: Mark | None = None  # behind the copy under way
        self._is_counted = False  # it is of decode windows alone
        self._windows = self._reads = 0  # launched since the last copy was asked for

    def before_launch(self, *, is_read: bool, every: int) -> None:
        """Ask for a copy if `every` windows ran since the last one, or windows now follow reads or reads windows."""
        is_change = self._windows > 0 if is_read else self._reads > 0
        if self._mark is None and (is_change or self._windows >= every):
            self._streams.copy_behind(self._asked, self._room)
            self._mark = self._streams.mark_main()
            self._is_counted = self._reads == 0
            self._windows = self._reads = 0
        if is_read:
            self._reads += 1
        else:
            self._windows += 1

    def take(self) -> NDArray[np.int32] | None:
        """int32 [layers, experts]: how often windows asked since the last time; None if no news has arrived."""
        if self._mark is None or not self._mark.is_passed():
            return None
        self._mark = None
        now = self._room.numpy()
        grown = now - self._last  # right across a wrap, too
        self._last = now.copy()
        return grown if self._is_counted else None
