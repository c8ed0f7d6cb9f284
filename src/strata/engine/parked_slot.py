"""Conversations of a device's slots that lie in main memory: what the engine's `Slot` holds as its state meanwhile.

Knows how far each one goes, and what room every stage of a chain has for its part; the bytes are the stages' matter
(`parked_cells`). See `state.moving.Parked` and `state.checkpoints.Restorable`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strata.engine.steps import ParkingSpace
from strata.experts.host_memory import Pinning


class ParkingStage(Protocol):
    """What one stage holds of parked conversations, by key; `engine.slot_keeper.StateKeeper` is one.

    Copies are launched in order and nobody waits for them.
    """

    @property
    def parking(self) -> ParkingSpace:
        """Its room, and what its part of a conversation takes."""
        ...

    def make_parking(self, size: int, pinning: Pinning | None) -> str | None:
        """Take so much main memory; nobody is parked yet. Returns a sentence for the user if it is not as was meant."""
        ...

    def park(self, slot: int, key: int, rows: int) -> None:
        """See `ParkedCells`, like the others."""
        ...

    def bring(self, key: int, slot: int, rows: int, *, is_whole: bool) -> None: ...

    def drop_parked(self, key: int) -> None: ...

    def moves_on(self) -> bool: ...


class ParkedPlaces:
    """The parked conversations of all slots of a chain of stages, or of one."""

    def __init__(self, stages: Sequence[ParkingStage]) -> None:
        self._stages = stages
        self._rows: dict[int, int] = {}  # by key
        self._last_key = 0

    @property
    def space(self) -> ParkingSpace:
        """Of all stages together."""
        spaces = [stage.parking for stage in self._stages]
        return ParkingSpace(*(sum(getattr(each, name) for each in spaces) for name in ("limit", "fixed", "per_token")))

    def make_room(self, size: int, context: int, pinning: Pinning | None) -> tuple[str, ...]:
        """Take so much main memory, for each stage what it takes of a conversation of `context` rows.

        Returns sentences for the user where memory is not as it was meant to be.
        """
        whole = self.space.size(context)
        shares = [size * stage.parking.size(context) // max(1, whole) for stage in self._stages]
        told = [stage.make_parking(share, pinning) for stage, share in zip(self._stages, shares, strict=True)]
        return tuple(dict.fromkeys(notice for notice in told if notice is not None))

    def park(self, slot: int, rows: int) -> int | None:
        """Copy a slot's first rows, under the key that it returns; None: some stage has no room."""
        for stage in self._stages:
            space = stage.parking
            if sum(map(space.size, (*self._rows.values(), rows))) > space.limit:
                return None
        self._last_key += 1
        for stage in self._stages:
            stage.park(slot, self._last_key, rows)
        self._rows[self._last_key] = rows
        return self._last_key

    def bring(self, key: int, slot: int, rows: int, *, is_whole: bool) -> None:
        """Copy its first rows into a slot; is_whole: what does not grow as well, as it was parked."""
        for stage in self._stages:
            stage.bring(key, slot, rows, is_whole=is_whole)

    def drop(self, key: int) -> None:
        """Its memory is free. Once more changes nothing."""
        if self._rows.pop(key, None) is not None:
            for stage in self._stages:
                stage.drop_parked(key)

    def bytes_used(self, key: int) -> int:
        """Of main memory."""
        return self.space.size(self._rows[key]) if key in self._rows else 0

    def moves_on(self) -> bool:
        """Launch the next part of what is to be copied; False: nothing is."""
        moved = [stage.moves_on() for stage in self._stages]
        return any(moved)


class SlotPlaces(Protocol):
    """The slots that it came from; `engine.stage_slots.StageSlots` is one."""

    @property
    def parked(self) -> ParkedPlaces:
        """Where they are parked."""
        ...

    def take(self) -> Any:
        """A free slot at the start of a text. Raises EngineError if there is none."""
        ...

    def give_back(self, slot: Any) -> None:
        """The slot is free for another text."""
        ...


@dataclass(frozen=True)
class ParkedEnd:
    """A checkpoint of a parked conversation where it ends: what does not grow lies beside its cells."""

    position: int


class ParkedSlot:
    """See the module. It may go back to a point, which has what does not grow; its bytes stay until `drop`."""

    def __init__(self, slots: SlotPlaces, key: int, position: int) -> None:
        self.position = position
        self._slots, self._key = slots, key
        self._place: Any = ParkedEnd(position)

    def bytes_used(self) -> int:
        """Of main memory."""
        return self._slots.parked.bytes_used(self._key)

    def take_checkpoint(self, *, is_mark: bool) -> Any:
        """See `Restorable`."""
        return self._place

    def go_back(self, saved: Any) -> None:
        """See `Restorable`."""
        self._place, self.position = saved, saved.position

    def fork(self, saved: Any) -> Any:
        """See `Restorable`: a slot with the cells in front of that place. Raises EngineError if no slot is free."""
        other = self._slots.take()
        try:
            is_whole = isinstance(saved, ParkedEnd)
            self._slots.parked.bring(self._key, other.index, saved.position, is_whole=is_whole)
            if is_whole:
                other.position = saved.position
            else:
                other.go_back(saved)
        except BaseException:
            self._slots.give_back(other)
            raise
        return other

    def moves_on(self) -> bool:
        """See `Moving`."""
        return self._slots.parked.moves_on()

    def unpark(self) -> Any:
        """See `Parked`; this one is still to be dropped."""
        return self.fork(self._place)

    def drop(self) -> None:
        """Its memory is free. Once more changes nothing."""
        self._slots.parked.drop(self._key)
