"""Hand-offs of windows between two cards of one process: rows of 40 KB and a few words, on the windows' own streams.

Knows two devices and the room between them. Copies on roads of their own (`hand_off`) let large chunks pass beside what
is computed, but their launches cost the host 100 us from card to card and 200 us through main memory (an H200, torch
2.11). A window has nothing to do before its rows have crossed, so they may cross on its stream. Main memory is taken
when the model is loaded, because none may be pinned while a window is in flight.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from strata.engine.hand_off import (
    HandOff,
    PlainCopy,
    Road,
    Roads,
    hand_off_between,
    pass_on,
    require_nothing_sent,
    require_sent,
)

ALIGNED_BYTES = 256  # where a tensor begins in the room


def window_way(source: torch.device, target: torch.device, most_bytes: int) -> HandOff:
    """A hand-off inside this process, of one tensor of at most `most_bytes` at a time."""
    if source.type != "cuda" or target.type != "cuda" or source == target:
        return hand_off_between(source, target)
    if not torch.cuda.can_device_access_peer(source, target):
        return through_memory(source, target, most_bytes)
    way = PlainCopy()  # torch has each stream wait for the other one, and the host for none
    words = [torch.zeros(1, device=device) for device in (source, target)]
    pass_on(way, words[:1], words[1:])  # the first copy opens one card's memory to the other
    return way


def through_memory(source: torch.device, target: torch.device, most_bytes: int) -> "ThroughMemory":
    """Between two cards, or on one."""
    return ThroughMemory(CurrentStreams(source, target), torch.empty(most_bytes, dtype=torch.uint8, pin_memory=True))


class ThroughMemory:
    """Down on the source's road, up on the target's. See `HandOff`."""

    def __init__(self, roads: Roads, room: torch.Tensor) -> None:
        """room: uint8, pinned where the devices are cards; as much as crosses at once."""
        self._roads, self._room = roads, room
        self._sent: Sequence[torch.Tensor] | None = None
        self._written: Any = None
        self._emptied: Any = None

    def send(self, found: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises RuntimeError if what was sent is still to be received, ValueError for too much."""
        require_nothing_sent(self._sent)
        if self._emptied is not None:
            self._roads.hold(Road.SOURCE, self._emptied)
        for tensor, room in self._rooms(found):
            self._roads.copy(Road.SOURCE, tensor, room)
        self._sent, self._written = found, self._roads.mark(Road.SOURCE)

    def receive(self, wanted: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises RuntimeError if nothing was sent."""
        require_sent(self._sent, wanted)
        self._sent = None
        self._roads.hold(Road.TARGET, self._written)
        for tensor, room in self._rooms(wanted):
            self._roads.copy(Road.TARGET, room, tensor)
        self._emptied = self._roads.mark(Road.TARGET)

    def before_overwriting(self) -> None:
        """See `HandOff`: what is sent is copied on the source's own road."""
        require_nothing_sent(self._sent)

    def _rooms(self, tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each with its place in the room."""
        start = 0
        for tensor in tensors:
            stop = start + tensor.nbytes
            if stop > len(self._room):
                raise ValueError(f"{stop} bytes cross at once: there is room for {len(self._room)}")
            yield tensor, self._room[start:stop].view(tensor.dtype).view(tensor.shape)
            start = -(-stop // ALIGNED_BYTES) * ALIGNED_BYTES


class CurrentStreams:
    """See `Roads`; `SOURCE` and `TARGET` alone."""

    def __init__(self, source: torch.device, target: torch.device) -> None:
        self._devices = {Road.SOURCE: source, Road.TARGET: target}

    def mark(self, road: Road) -> torch.cuda.Event:
        """See `Roads`."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._devices[road]))
        return event

    def hold(self, road: Road, mark: torch.cuda.Event) -> None:
        """See `Roads`."""
        torch.cuda.current_stream(self._devices[road]).wait_event(mark)

    def copy(self, road: Road, found: torch.Tensor, wanted: torch.Tensor) -> None:
        """See `Roads`: torch copies between a card and pinned memory on that card's current stream."""
        wanted.copy_(found, non_blocking=True)
