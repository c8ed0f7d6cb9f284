"""Small tables on their way from this process to a device, behind what was launched, without the host's waiting.

Knows bytes. A card copies them later: they wait in pinned memory that is there from the start, because taking some
while a card works may wait for it.
"""

import torch

from strata.experts.streams import Mark, Streams

ROOMS = 4  # that many copies may be under way; one more waits for the first


class Staging:
    """Rooms that are used in turns. Not thread-safe."""

    def __init__(self, most_bytes: int, device: torch.device, streams: Streams) -> None:
        """most_bytes: of one table. Raises torch's error if there is no such memory."""
        self._streams = streams
        is_gpu = device.type == "cuda"
        self._rooms = [torch.empty(most_bytes, dtype=torch.uint8, pin_memory=is_gpu) for _ in range(ROOMS)]
        self._marks: list[Mark | None] = [None] * ROOMS
        self._next = 0

    def put(self, values: torch.Tensor, target: torch.Tensor) -> None:
        """values: a contiguous table in main memory, of any type."""
        room, mark = self._rooms[self._next], self._marks[self._next]
        if mark is not None:
            mark.wait()
        size = values.numel() * values.element_size()
        staged = room[:size].view(values.dtype).view(values.shape)
        staged.copy_(values)
        self._streams.copy_behind(staged, target)
        self._marks[self._next] = self._streams.mark_main()
        self._next = (self._next + 1) % ROOMS
