"""The slots of a stage as states that the engine holds: what is free, where each stands, and the ways back in it.

A slot is written in place, so a checkpoint copies what does not grow. Cells are only cut back, since those in front of
a position never change. Marks are copied into two seats of the slot on the device; points, which last longer, into main
memory. Every stage of a chain does so for its own layers and is told by keys (`slot_keeper`).
"""

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from strata.engine.chain_stage import WindowStage
from strata.engine.parked_slot import ParkedPlaces, ParkedSlot
from strata.engine.slot import RECENT_MARKS
from strata.engine.slot_keeper import CopyKey, Point, Seat, SlotKeeper, StateKeeper
from strata.errors import EngineError
from strata.experts.host_memory import Pinning


@dataclass(eq=False)
class SlotCopy:
    """What does not grow of a slot's state behind `position` rows; its memory is free when this is gone."""

    key: CopyKey
    position: int | None  # None: behind a window that has not landed
    keepers: Sequence[SlotKeeper] = field(repr=False)

    def parts_of(self, stage: int) -> Sequence[torch.Tensor]:
        """Those of one stage of this process, as `slot_keeper.fixed_parts` gives them."""
        keeper = self.keepers[stage]
        assert isinstance(keeper, StateKeeper), "the stage is in another process"
        return keeper.parts(self.key)

    def bytes_used(self) -> int:
        """Bytes that are there for this copy alone."""
        return 0 if isinstance(self.key, Seat) else sum(keeper.copy_bytes for keeper in self.keepers)


class StageSlots:
    """Which slots of a stage, or of a chain of them, are free, and the room that their points have."""

    def __init__(self, stage: WindowStage) -> None:
        self.stage = stage
        self.keepers = tuple(stage.slot_keepers())
        self.notices: tuple[str, ...] = ()  # sentences for the user
        self._free = list(reversed(range(stage.sizes.slots)))
        self.parked = ParkedPlaces(self.keepers)
        self._points = 0  # so far
        self._dropped: deque[Point] = deque()  # whose memory the keepers still hold

    @property
    def slot_bytes(self) -> int:
        """Of one slot with its seats, on the devices; keys and values count wherever they lie."""
        return sum(keeper.slot_bytes for keeper in self.keepers)

    @property
    def point_bytes(self) -> int:
        """Of one point, in main memory."""
        return sum(keeper.point_bytes for keeper in self.keepers)

    @property
    def free_points(self) -> int:
        """Points there is room for in the memory that was made for them."""
        self._let_go()
        return min(keeper.free_points for keeper in self.keepers)

    def make_room(self, points: int, pinning: Pinning | None) -> None:
        """Take main memory for so many points; nobody has one yet. pinning: of memory that a card copies to.

        `notices` says from then on where memory is not as it was meant to be.
        """
        told = [keeper.make_room(points, pinning) for keeper in self.keepers]
        self.notices = tuple(dict.fromkeys(notice for notice in told if notice is not None))

    def room_for_copy(self, position: int) -> SlotCopy:
        """Main memory for a copy of what does not grow of a slot, which a device may write and read from now on."""
        self._let_go()
        self._points += 1
        key = Point(self._points)
        copy = SlotCopy(key, position, self.keepers)
        # Who collects what is gone may do so in the middle of a call to a stage, so that it only says so here.
        weakref.finalize(copy, self._dropped.append, key).atexit = False
        for keeper in self.keepers:
            keeper.room_for(key)
        return copy

    def save(self, index: int, copy: SlotCopy) -> None:
        """Copy what does not grow of a slot, behind everything that was launched."""
        for keeper in self.keepers:
            keeper.save(index, copy.key)

    def restore(self, index: int, copy: SlotCopy) -> None:
        """Make a slot, but for its cells, what was copied. No window of it is in flight."""
        self.stage.end_reply(index)
        for keeper in self.keepers:
            keeper.restore(index, copy.key)

    def copy_slot(self, source: int, target: int, rows: int) -> None:
        """Make slot `target` what slot `source` is behind its first `rows` rows, cells and all."""
        for keeper in self.keepers:
            keeper.copy(source, target, rows)

    def take(self) -> "StageSlot":
        """A free slot at the start of a text. Raises EngineError if there is none."""
        if not self._free:
            raise EngineError(f"all {self.stage.sizes.slots} slots of the device hold a conversation")
        index = self._free.pop()
        self.stage.end_reply(index)
        for keeper in self.keepers:
            keeper.reset(index)
        return StageSlot(self, index)

    def give_back(self, slot: "StageSlot | ParkedSlot") -> None:
        """The slot is free for another text; nothing is launched. A slot that was given back already stays so."""
        if isinstance(slot, ParkedSlot):
            slot.drop()
        elif slot.is_held:
            slot.is_held = False
            self._free.append(slot.index)

    def _let_go(self) -> None:
        """Tell the keepers of points that are gone."""
        while self._dropped:
            key = self._dropped.popleft()
            for keeper in self.keepers:
                keeper.drop(key)


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

    def end_chunk(self, rows: int) -> None:
        """So many rows of a read that goes on are behind the last stage."""
        self.position += rows

    def end_read(self, rows: int) -> None:
        """So many rows became part of the state."""
        self.position += rows
        self.is_broken = False

    def park(self) -> ParkedSlot | None:
        """See `Movable`."""
        assert not self.is_broken and self._in_flight == 0, "it is parked where the state is whole and known"
        key = self._slots.parked.park(self.index, self.position)
        return None if key is None else ParkedSlot(self._slots, key, self.position)

    def moves_on(self) -> bool:
        """See `Movable`."""
        return self._slots.parked.moves_on()

    def bytes_used(self) -> int:
        """Of the slot on the device, whatever its text fills."""
        return self._slots.slot_bytes

    def clone(self) -> "StageSlot":
        """Another slot with the same text."""
        return self.fork(self.take_checkpoint(is_mark=False))

    def take_checkpoint(self, *, is_mark: bool) -> SlotCopy:
        """See `Restorable`; behind everything that was launched so far."""
        assert not self.is_broken, "nobody goes on from a window that failed"
        if not is_mark:
            assert self._in_flight == 0, "a point is taken where the host knows the position"
            point = self.room_for_copy(self.position)
            self._slots.save(self.index, point)
            return point
        seat = Seat(self.index, self._marks % RECENT_MARKS)
        self._marks += 1
        copy = SlotCopy(seat, None if self._in_flight else self.position, self._slots.keepers)
        self._slots.save(self.index, copy)
        self._open_mark = copy if self._in_flight else None
        return copy

    def room_for_copy(self, position: int) -> SlotCopy:
        """Main memory for the state behind so many rows."""
        return self._slots.room_for_copy(position)

    def go_back(self, saved: SlotCopy) -> None:
        """See `Restorable`."""
        assert self._in_flight == 0 and saved.position is not None, "windows land before anyone goes back"
        self._slots.restore(self.index, saved)
        self.position, self.is_broken = saved.position, False

    def fork(self, saved: SlotCopy) -> "StageSlot":
        """See `Restorable`: the cells are copied. Raises EngineError if no slot is free."""
        assert saved.position is not None, "windows land before anyone goes back"
        other = self._slots.take()
        try:
            self._slots.copy_slot(self.index, other.index, saved.position)
            other.go_back(saved)
        except BaseException:
            self._slots.give_back(other)
            raise
        return other
