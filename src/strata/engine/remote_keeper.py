"""What the stage of another process keeps of the slots' states: told by keys, and counted here. Knows no tensor."""

from dataclasses import replace

from strata.engine import stage_calls as calls
from strata.engine.slot_keeper import CopyKey, Point, Seat
from strata.engine.stage_line import StageLine
from strata.engine.steps import ParkingSpace
from strata.experts.host_memory import Pinning


class RemoteKeeper:
    """See `SlotKeeper`."""

    def __init__(self, line: StageLine, sizes: calls.KeptBytes) -> None:
        self.slot_bytes, self.copy_bytes, self.point_bytes = sizes.slot_bytes, sizes.copy_bytes, sizes.point_bytes
        self.free_points = 0
        self.parking = ParkingSpace(0, sizes.parked_fixed, sizes.parked_per_token)
        self._line = line
        self._in_room: set[int] = set()  # points that lie in the memory that was made for them
        self._may_move = False  # something is on its way from or to main memory, as far as is known here

    def make_room(self, points: int, pinning: Pinning | None) -> str | None:
        """See `SlotKeeper`. The other process pins for its own card."""
        answer = self._line.ask(calls.AskRoom(points))
        self.free_points = answer.count
        return answer.text

    def reset(self, slot: int) -> None:
        """See `SlotKeeper`."""
        self._line.tell(calls.SlotReset(slot))

    def copy(self, source: int, target: int, rows: int) -> None:
        """See `SlotKeeper`."""
        self._line.tell(calls.SlotCopied(source, target, rows))

    def room_for(self, key: Point) -> None:
        """See `SlotKeeper`."""
        self._line.tell(calls.PointMade(key.number))
        if self.free_points:
            self.free_points -= 1
            self._in_room.add(key.number)

    def save(self, slot: int, key: CopyKey) -> None:
        """See `SlotKeeper`."""
        self._line.tell(calls.SlotSaved(slot, plain_key(key)))

    def restore(self, slot: int, key: CopyKey) -> None:
        """See `SlotKeeper`."""
        self._line.tell(calls.SlotRestored(slot, plain_key(key)))

    def drop(self, key: Point) -> None:
        """See `SlotKeeper`. Once the line is lost, or has ended, there is nothing to drop."""
        if self._line.is_well:
            self._line.tell(calls.PointDropped(key.number))
        if key.number in self._in_room:
            self._in_room.remove(key.number)
            self.free_points += 1

    def make_parking(self, size: int, pinning: Pinning | None) -> str | None:
        """See `ParkingStage`."""
        answer = self._line.ask(calls.AskParking(size))
        self.parking = replace(self.parking, limit=answer.count)
        return answer.text

    def park(self, slot: int, key: int, rows: int) -> None:
        """See `ParkingStage`."""
        self._line.tell(calls.SlotParked(slot, key, rows))
        self._may_move = True

    def bring(self, key: int, slot: int, rows: int, *, is_whole: bool) -> None:
        """See `ParkingStage`."""
        self._line.tell(calls.ParkedBrought(key, slot, rows, is_whole))
        self._may_move = True

    def drop_parked(self, key: int) -> None:
        """See `ParkingStage`."""
        if self._line.is_well:
            self._line.tell(calls.ParkedDropped(key))

    def moves_on(self) -> bool:
        """See `ParkingStage`. Asks only as long as something may be on its way."""
        self._may_move = self._may_move and bool(self._line.ask(calls.AskMoves()).count)
        return self._may_move


def plain_key(key: CopyKey) -> calls.PlainKey:
    """As a call carries it."""
    return calls.PlainKey(key.slot, key.number) if isinstance(key, Seat) else calls.PlainKey(None, key.number)


def copy_key(key: calls.PlainKey) -> CopyKey:
    """What a call carried."""
    return Point(key.number) if key.slot is None else Seat(key.slot, key.number)
