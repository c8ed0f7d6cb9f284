"""What one stage keeps of the slots' states beside themselves: marks in seats on its device, points in main memory.

Knows the state of its own layers and copies by key, so that the stage may be in another process than who holds the
keys. Of a slot it copies what does not grow: the delta nets' matrices, the convolutions' tails, the n-grams' history
and tails. Copies are launched like windows, in order, and nobody waits for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from strata.engine.checkpoint_room import CheckpointRoom, PartShape, no_room
from strata.engine.parked_cells import ParkedCells
from strata.engine.parked_room import ParkedRoom
from strata.engine.parked_slot import ParkingStage
from strata.engine.slot import RECENT_MARKS
from strata.engine.steps import ParkingSpace
from strata.experts.host_memory import Pinning
from strata.models.device.state import DeviceState


@dataclass(frozen=True)
class Seat:
    """One of a slot's places for marks, which are used in turn."""

    slot: int
    number: int


@dataclass(frozen=True)
class Point:
    """Memory for one copy, from `room_for` until `drop`."""

    number: int


CopyKey = Seat | Point


class SlotKeeper(ParkingStage, Protocol):
    """See the module. Every stage of a chain has one, and is told the same. It also keeps what is parked."""

    @property
    def slot_bytes(self) -> int:
        """Of one slot with its seats, on the device; keys and values count wherever they lie."""
        ...

    @property
    def copy_bytes(self) -> int:
        """Of one copy."""
        ...

    @property
    def point_bytes(self) -> int:
        """Of memory for a point."""
        ...

    @property
    def free_points(self) -> int:
        """Points there is room for in the memory that was made for them."""
        ...

    def make_room(self, points: int, pinning: Pinning | None) -> str | None:
        """Take main memory for so many points; nobody has one yet. pinning: of memory that a card copies to.

        Returns a sentence for the user if memory is not as it was meant to be.
        """
        ...

    def reset(self, slot: int) -> None:
        """The slot is at the start of a text."""
        ...

    def copy(self, source: int, target: int, rows: int) -> None:
        """Make slot `target` what slot `source` is after its `rows` committed rows: the cells too."""
        ...

    def room_for(self, key: Point) -> None:
        """Memory for a point, which whoever computes may write from now on."""
        ...

    def save(self, slot: int, key: CopyKey) -> None:
        """Copy what does not grow of a slot, for `restore`; a point has room."""
        ...

    def restore(self, slot: int, key: CopyKey) -> None:
        """Copy it back, into any slot."""
        ...

    def drop(self, key: Point) -> None:
        """Its memory may be another point's from now on."""
        ...


class StateKeeper:
    """See `SlotKeeper`: of a stage in this process."""

    def __init__(self, state: DeviceState) -> None:
        """Makes the seats."""
        self._state = state
        parts = fixed_parts(state, 0)
        shapes = [(state.slots, RECENT_MARKS, *part.shape) for part in parts]
        self._seats = [part.new_empty(shape) for part, shape in zip(parts, shapes, strict=True)]
        self._shapes = [PartShape(tuple(part.shape), part.dtype) for part in parts]
        self._points: dict[int, _Held] = {}
        self._room = no_room(self._shapes)
        self._parked = ParkedCells(state, ParkedRoom(0, None))
        self.copy_bytes = sum(part.nbytes for part in parts)

    @property
    def slot_bytes(self) -> int:
        """See `SlotKeeper`."""
        return (self._state.bytes_used() + sum(seat.nbytes for seat in self._seats)) // self._state.slots

    @property
    def point_bytes(self) -> int:
        """See `SlotKeeper`."""
        return self._room.piece_bytes

    @property
    def free_points(self) -> int:
        """See `SlotKeeper`."""
        return self._room.free_pieces

    def make_room(self, points: int, pinning: Pinning | None) -> str | None:
        """See `SlotKeeper`."""
        self._room = CheckpointRoom(self._shapes, points, pinning)
        return self._room.notice

    @property
    def parking(self) -> ParkingSpace:
        """See `ParkingStage`, and below."""
        return self._parked.space

    def make_parking(self, size: int, pinning: Pinning | None) -> str | None:
        room = ParkedRoom(size, pinning)
        self._parked = ParkedCells(self._state, room)
        return room.notice

    def park(self, slot: int, key: int, rows: int) -> None:
        self._parked.park(slot, key, rows)

    def bring(self, key: int, slot: int, rows: int, *, is_whole: bool) -> None:
        self._parked.bring(key, slot, rows, is_whole=is_whole)

    def drop_parked(self, key: int) -> None:
        self._parked.drop(key)

    def moves_on(self) -> bool:
        return self._parked.moves_on()

    def reset(self, slot: int) -> None:
        """See `SlotKeeper`."""
        self._state.reset(slot)

    def copy(self, source: int, target: int, rows: int) -> None:
        """See `SlotKeeper`."""
        self._state.copy(source, target, rows)

    def room_for(self, key: Point) -> None:
        """See `SlotKeeper`. Raises torch's error where the system gives or pins no memory."""
        held = _Held()
        held.parts = self._room.take(held, fixed_parts(self._state, 0))
        self._points[key.number] = held

    def save(self, slot: int, key: CopyKey) -> None:
        """See `SlotKeeper`."""
        copy_all(fixed_parts(self._state, slot), self.parts(key))

    def restore(self, slot: int, key: CopyKey) -> None:
        """See `SlotKeeper`."""
        copy_all(self.parts(key), fixed_parts(self._state, slot))

    def drop(self, key: Point) -> None:
        """See `SlotKeeper`. Without room for it nothing happens."""
        self._points.pop(key.number, None)

    def parts(self, key: CopyKey) -> Sequence[torch.Tensor]:
        """Where a copy lies, as `fixed_parts` gives a slot's."""
        if isinstance(key, Point):
            return self._points[key.number].parts
        return [seat[key.slot, key.number] for seat in self._seats]


class _Held:
    """Memory of one point; the room has it back when this is gone."""

    parts: Sequence[torch.Tensor] = ()


def fixed_parts(state: DeviceState, slot: int) -> list[torch.Tensor]:
    """What does not grow of a slot's state: views [layers, ...] (of the history [1, ...]), each layer contiguous."""
    by_layer = (whole[:, slot] for whole in (state.delta, state.conv_tail, state.ngram_tail))
    return [*by_layer, state.history[slot : slot + 1]]


def copy_all(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Copy part by part, between any two places, in the order of launches.

    Between a device and main memory it goes layer by layer: of a view with gaps torch would make a copy first, on the
    device, as large as the part.
    """
    for source, target in zip(found, wanted, strict=True):
        if source.device == target.device:
            target.copy_(source)
        else:
            for from_layer, to_layer in zip(source, target, strict=True):
                to_layer.copy_(from_layer, non_blocking=True)
