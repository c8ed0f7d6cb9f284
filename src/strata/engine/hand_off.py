"""How tensors of one stage get to the next: a window's rows, a chunk's streams, the chosen tokens on their way back.

Knows devices and the order of launches; knows no layer and no request. A hand-off is one way for one traveller, such as
the windows of a group from one stage to the next, so that nobody queues behind a larger one. Copies run on roads of
their own and nobody waits for them on the host: the target's launches wait for what was sent, and the source's, once
`before_overwriting` was called, for the copy of it. Between processes: `remote_copy.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch

# Of what goes through main memory; two are in flight. To launch one takes 0.1 ms, so that pieces of 4 MiB gave 40 GB/s
# on an H200 whose link gives 55 each way.
PIECE_BYTES = 16 << 20
PIECES_IN_FLIGHT = 2


class Crosses(Enum):
    """What a stage gives to another one."""

    WINDOW = "window"  # the streams of its rows
    CHOSEN = "chosen"  # the tokens that the last stage chose, back to all others
    CHUNK = "chunk"  # the streams of a prompt's rows


@dataclass(frozen=True)
class Crossing:
    """Which tensors of a stage cross, so that a stage of another process can be told by a value."""

    what: Crosses
    size: int  # the bucket of a window, the rows of a chunk
    group: int = 0  # of slots whose windows run together


class Way(Enum):
    """How copies between two cards of one process go."""

    PEER = "peer"  # from card to card
    PINNED = "pinned"  # through main memory


class HandOff(Protocol):
    """Tensors are contiguous and stay where they are; each `send` has one `receive` of the same shapes and types."""

    def send(self, found: Sequence[torch.Tensor]) -> None:
        """Behind what was launched on the source's device, on its current stream."""
        ...

    def receive(self, wanted: Sequence[torch.Tensor]) -> None:
        """Into these, behind what was launched on the target's; what is launched there from now on finds them."""
        ...

    def before_overwriting(self) -> None:
        """What is launched on the source's device from now on may write over what was sent. Both ends know of it."""
        ...


def hand_off_between(source: torch.device, target: torch.device, way: Way | None = None) -> HandOff:
    """A hand-off inside this process. way: None for what suits the cards; ValueError where it is not for cards."""
    if source.type != "cuda" or target.type != "cuda" or (source == target and way is None):
        if way is not None:
            raise ValueError(f"a copy of the kind {way.value} is between two cards, not from {source} to {target}")
        return PlainCopy()
    if way is None:
        way = Way.PEER if torch.cuda.can_device_access_peer(source, target) else Way.PINNED
    roads = CudaRoads(source, target)
    return PeerCopy(roads) if way is Way.PEER else PinnedCopy(roads, _pinned_rooms(PIECE_BYTES))


def pass_on(hand_off: HandOff, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Both ends, where they are in this process."""
    hand_off.send(found)
    hand_off.receive(wanted)


class PlainCopy:
    """Inside one device on its current stream, or to and from the CPU, whose work is done when a call returns."""

    def __init__(self) -> None:
        self._sent: Sequence[torch.Tensor] | None = None

    def send(self, found: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises RuntimeError if what was sent before is still to be received."""
        require_nothing_sent(self._sent)
        self._sent = found

    def receive(self, wanted: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises RuntimeError if nothing was sent."""
        found, self._sent = require_sent(self._sent, wanted), None
        for source, target in zip(found, wanted, strict=True):
            target.copy_(source)

    def before_overwriting(self) -> None:
        """See `HandOff`: copies are in the order of launches."""
        require_nothing_sent(self._sent)


class Road(Enum):
    """Where launches go in order."""

    SOURCE = "source"  # the current stream of the source's device
    TARGET = "target"  # and of the target's
    DOWN = "down"  # copies on the source's device
    UP = "up"  # copies on the target's


class Roads(Protocol):
    """The four roads of a hand-off. No call waits for a device."""

    def mark(self, road: Road) -> Any:
        """A place behind everything on this road."""
        ...

    def hold(self, road: Road, mark: Any) -> None:
        """What comes onto the road from now on starts once the mark, of any road, is passed."""
        ...

    def copy(self, road: Road, found: torch.Tensor, wanted: torch.Tensor) -> None:
        """A copy on this road, `DOWN` or `UP`. Host memory must be pinned."""
        ...


class CudaRoads:
    """See `Roads`."""

    def __init__(self, source: torch.device, target: torch.device) -> None:
        self._source, self._target = source, target
        self._down, self._up = torch.cuda.Stream(source), torch.cuda.Stream(target)

    def mark(self, road: Road) -> torch.cuda.Event:
        """See `Roads`."""
        event = torch.cuda.Event()
        event.record(self._stream(road))
        return event

    def hold(self, road: Road, mark: torch.cuda.Event) -> None:
        """See `Roads`."""
        self._stream(road).wait_event(mark)

    def copy(self, road: Road, found: torch.Tensor, wanted: torch.Tensor) -> None:
        """See `Roads`. From card to card torch makes the current streams of both wait for each other: both are ours."""
        own, other = (self._down, self._up) if road is Road.DOWN else (self._up, self._down)
        is_between_cards = found.is_cuda and wanted.is_cuda and found.device != wanted.device
        with torch.cuda.stream(other) if is_between_cards else nullcontext(), torch.cuda.stream(own):
            wanted.copy_(found, non_blocking=True)

    def _stream(self, road: Road) -> torch.cuda.Stream:
        if road is Road.DOWN:
            return self._down
        if road is Road.UP:
            return self._up
        return torch.cuda.current_stream(self._source if road is Road.SOURCE else self._target)


class _Sending:
    """What both ways between cards have in common: who waits for whom."""

    def __init__(self, roads: Roads) -> None:
        self._roads = roads
        self._sent: Sequence[torch.Tensor] | None = None
        self._written: Any = None
        self._copied: Any = None  # of what was sent last

    def send(self, found: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises RuntimeError if what was sent before is still to be received."""
        require_nothing_sent(self._sent)
        self._sent, self._written = found, self._roads.mark(Road.SOURCE)

    def before_overwriting(self) -> None:
        """See `HandOff`."""
        require_nothing_sent(self._sent)
        if self._copied is not None:
            self._roads.hold(Road.SOURCE, self._copied)


class PeerCopy(_Sending):
    """From card to card. See `HandOff`."""

    def receive(self, wanted: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises RuntimeError if nothing was sent."""
        found, self._sent = require_sent(self._sent, wanted), None
        self._roads.hold(Road.DOWN, self._written)
        self._roads.hold(Road.DOWN, self._roads.mark(Road.TARGET))  # who reads what lies there now
        for source, target in zip(found, wanted, strict=True):
            self._roads.copy(Road.DOWN, source, target)
        self._copied = self._roads.mark(Road.DOWN)
        self._roads.hold(Road.TARGET, self._copied)


class PinnedCopy(_Sending):
    """Through pinned main memory, piece by piece: one comes down while the one before it goes up. See `HandOff`."""

    def __init__(self, roads: Roads, rooms: Sequence[torch.Tensor]) -> None:
        """rooms: uint8 of one size in pinned memory, one for each piece in flight."""
        super().__init__(roads)
        self._rooms = rooms
        self._emptied: list[Any] = [None] * len(rooms)
        self._pieces = 0  # so far

    def receive(self, wanted: Sequence[torch.Tensor]) -> None:
        """See `HandOff`. Raises RuntimeError if nothing was sent."""
        found, self._sent = require_sent(self._sent, wanted), None
        roads = self._roads
        roads.hold(Road.DOWN, self._written)
        roads.hold(Road.UP, roads.mark(Road.TARGET))  # who reads what lies there now
        for source, target in _pieces(found, wanted, self._rooms[0].numel()):
            place = self._pieces % len(self._rooms)
            self._pieces += 1
            if self._emptied[place] is not None:
                roads.hold(Road.DOWN, self._emptied[place])
            room = self._rooms[place][: source.numel()]
            roads.copy(Road.DOWN, source, room)
            roads.hold(Road.UP, roads.mark(Road.DOWN))
            roads.copy(Road.UP, room, target)
            self._emptied[place] = roads.mark(Road.UP)
        self._copied = roads.mark(Road.DOWN)
        roads.hold(Road.TARGET, roads.mark(Road.UP))


def require_nothing_sent(sent: Sequence[torch.Tensor] | None) -> None:
    """Raises RuntimeError where the other end has yet to take what was sent."""
    if sent is not None:
        raise RuntimeError("what was sent by this hand-off is to be received before anything else is done with it")


def require_sent(sent: Sequence[torch.Tensor] | None, wanted: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """What was sent. Raises RuntimeError if nothing was, ValueError for tensors that do not match or have gaps."""
    if sent is None:
        raise RuntimeError("nothing was sent by this hand-off")
    if [each.shape for each in sent] != [each.shape for each in wanted]:
        raise ValueError(f"{_shapes(sent)} were sent, room for {_shapes(wanted)} is there")
    if [each.dtype for each in sent] != [each.dtype for each in wanted]:
        raise ValueError(f"{_types(sent)} were sent, room for {_types(wanted)} is there")
    if not all(each.is_contiguous() for each in (*sent, *wanted)):
        raise ValueError(f"tensors without gaps cross; of {_shapes(sent)} one has gaps")
    return sent


def _pieces(
    found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same bytes of both, at most `size` at a time."""
    for source, target in zip(found, wanted, strict=True):
        if source.numel():
            whole = source.view(-1).view(torch.uint8), target.view(-1).view(torch.uint8)
            yield from zip(*(each.split(size) for each in whole), strict=True)


def _pinned_rooms(size: int) -> list[torch.Tensor]:
    return [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(PIECES_IN_FLIGHT)]


def _shapes(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(str(list(each.shape)) for each in tensors) or "no tensors"


def _types(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(str(each.dtype).removeprefix("torch.") for each in tensors)
