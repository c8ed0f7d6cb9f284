"""The slots of a stage as states that the engine holds: what is free, where each stands, and the ways back in it.

A slot is written in place, so a checkpoint copies what does not grow: the delta nets' matrices, the convolutions'
tails, the n-grams' history and tails. Cells are only cut back, since those in front of a position never change. Marks
are copied into two seats of the slot on the device; points, which last longer, into main memory (`checkpoint_room`).
Copies are launched like windows and nobody waits for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.engine.checkpoint_room import CheckpointRoom, PartShape, no_room
from strata.engine.slot import RECENT_MARKS
from strata.engine.stage import Stage
from strata.errors import EngineError
from strata.experts.host_memory import Pinning
from strata.models.device.state import DeviceState


@dataclass
class SlotCopy:
    """What does not grow of a slot's state behind `position` rows."""

    parts: Sequence[torch.Tensor]  # as `fixed_parts` gives them
    position: int | None  # None: behind a window that has not landed
    is_in_seat: bool = False  # not memory of its own

    def bytes_used(self) -> int:
        """Bytes that are there for this copy alone."""
        return 0 if self.is_in_seat else sum(part.numel() * part.element_size() for part in self.parts)


class StageSlots:
    """Which slots of a stage are free, the seats of all of them, and the room that their points have."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._free = list(reversed(range(stage.sizes.slots)))
        parts = fixed_parts(stage.state, 0)
        shapes = [(stage.sizes.slots, RECENT_MARKS, *part.shape) for part in parts]
        self._seats = [part.new_empty(shape) for part, shape in zip(parts, shapes, strict=True)]
        self._shapes = [PartShape(tuple(part.shape), part.dtype) for part in parts]
        self.room = no_room(self._shapes)

    @property
    def point_bytes(self) -> int:
        """Of one point, in main memory."""
        return self.room.piece_bytes

    def make_room(self, points: int, pinning: Pinning | None) -> None:
        """Take main memory for so many points; nobody has one yet. pinning: of memory that a card copies to."""
        self.room = CheckpointRoom(self._shapes, points, pinning)

    def room_for_copy(self, index: int, position: int) -> SlotCopy:
        """Main memory for a copy of what does not grow of a slot, which a device may write and read from now on."""
        copy = SlotCopy((), position)
        copy.parts = self.room.take(copy, fixed_parts(self.stage.state, index))
        return copy

    @property
    def slot_bytes(self) -> int:
        """Of one slot with its seats, on the device; keys and values count wherever they lie."""
        seats = sum(seat.numel() * seat.element_size() for seat in self._seats)
        return (self.stage.state.bytes_used() + seats) // self.stage.sizes.slots

    def take(self) -> "StageSlot":
        """A free slot at the start of a text. Raises EngineError if there is none."""
        if not self._free:
            raise EngineError(f"all {self.stage.sizes.slots} slots of the device hold a conversation")
        index = self._free.pop()
        self.stage.reset_slot(index)
        return StageSlot(self, index)

    def give_back(self, slot: "StageSlot") -> None:
        """The slot is free for another text; nothing is launched. A slot that was given back already stays so."""
        if slot.is_held:
            slot.is_held = False
            self._free.append(slot.index)

    def seat(self, index: int, number: int) -> list[torch.Tensor]:
        """One of a slot's seats: views, a part each."""
        return [seat[index, number % RECENT_MARKS] for seat in self._seats]


class StageSlot:
    """See `SlotState`; also `state.checkpoints.Restorable`. `position` is what has landed."""

    def __init__(self, slots: StageSlots, index: int) -> None:
        self.index = index
        self.position = 0
        self.is_held = True
        self.is_broken = False  # a window failed here, or a read is under way: half moved, and only `go_back` mends it
        self._slots = slots
        self._in_flight = 0  # windows
        self._marks = 0  # taken so far
        self._open_mark: SlotCopy | None = None  # its position is not known yet

    def launched(self) -> None:
        """A window was launched whose result nobody has read."""
        self._in_flight += 1

    def landed(self, rows: int) -> None:
        """So many rows of the next window that was launched became part of the state."""
        self._in_flight -= 1
        self.position += rows
        if self._open_mark is not None:
            self._open_mark.position, self._open_mark = self.position, None

    def failed(self) -> None:
        """The next window that was launched found no numbers. Nobody goes on from here, or back to a mark behind it."""
        self._in_flight -= 1
        self._open_mark = None
        self.is_broken = True

    def begin_read(self) -> None:
        """Rows are on their way into the state, layer by layer."""
        assert not self.is_broken and self._in_flight == 0, "a read begins where the state is whole and known"
        self.is_broken = True

    def end_read(self, rows: int) -> None:
        """So many rows became part of the state."""
        self.position += rows
        self.is_broken = False

    def bytes_used(self) -> int:
        """Of the slot on the device, whatever its text fills."""
        return self._slots.slot_bytes

    def clone(self) -> "StageSlot":
        """Another slot with the same text."""
        return self.fork(self.take_checkpoint(is_mark=False))

    def take_checkpoint(self, *, is_mark: bool) -> SlotCopy:
        """See `Restorable`; behind everything that was launched so far."""
        assert not self.is_broken, "nobody goes on from a window that failed"
        parts = fixed_parts(self._slots.stage.state, self.index)
        if not is_mark:
            assert self._in_flight == 0, "a point is taken where the host knows the position"
            point = self.room_for_copy(self.position)
            copy_all(parts, point.parts)
            return point
        seat = self._slots.seat(self.index, self._marks)
        self._marks += 1
        copy_all(parts, seat)
        copy = SlotCopy(seat, None if self._in_flight else self.position, is_in_seat=True)
        self._open_mark = copy if self._in_flight else None
        return copy

    def room_for_copy(self, position: int) -> SlotCopy:
        """Main memory for the state behind so many rows."""
        return self._slots.room_for_copy(self.index, position)

    def go_back(self, saved: SlotCopy) -> None:
        """See `Restorable`."""
        assert self._in_flight == 0 and saved.position is not None, "windows land before anyone goes back"
        stage = self._slots.stage
        stage.end_reply(self.index)
        copy_all(saved.parts, fixed_parts(stage.state, self.index))
        self.position, self.is_broken = saved.position, False

    def fork(self, saved: SlotCopy) -> "StageSlot":
        """See `Restorable`: the cells are copied. Raises EngineError if no slot is free."""
        assert saved.position is not None, "windows land before anyone goes back"
        other = self._slots.take()
        try:
            self._slots.stage.state.copy(self.index, other.index, saved.position)
            other.go_back(saved)
        except BaseException:
            self._slots.give_back(other)
            raise
        return other


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
