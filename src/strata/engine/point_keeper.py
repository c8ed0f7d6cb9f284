"""Keeps the points of an engine's slots within their budget, and counts what that cost and what it saved.

Knows slots by number; which points go is decided in `points.py`, where they lie is the model's matter.
"""

import logging
import sys
from collections.abc import Mapping, Sequence

from strata.engine.points import Kept, PointBudget, WantedPoint, points_given_up
from strata.engine.slot import Slot
from strata.state.checkpoints import checkpoint_bytes

DEFAULT_POINTS = 8  # of each slot, together
DEFAULT_SLOTS = 4
_log = logging.getLogger("strata.checkpoints")


class PointKeeper:
    """One engine's."""

    def __init__(self, budget: PointBudget | None = None) -> None:
        """budget: None for a few points of a few slots."""
        self._budget = budget or PointBudget(DEFAULT_POINTS * DEFAULT_SLOTS, DEFAULT_SLOTS)
        self._dropped = self._hits = self._rows = 0
        self._changed: set[int] = set()  # slots that gave points up
        self._coming: dict[int, tuple[int, ...]] = {}  # points that were granted to reads under way, by slot

    def make_room(self, slots: Mapping[int, Slot], number: int, wanted: Sequence[int]) -> tuple[int, ...]:
        """Room for new points of a slot, at rising positions behind those that it has; the last one is always granted.

        Points of it and of others are given up for that, or fewer of the wanted ones are granted; returns those that
        are.
        """
        held = {each: self._held(each, slot) for each, slot in slots.items()}
        held[number] += [WantedPoint(position, slots[number].use) for position in wanted]
        parked = [each for each, slot in slots.items() if slot.is_parked]
        given_up = points_given_up(held, self._budget, parked)
        for each, positions in given_up.items():
            slots[each].give_up(positions)
        self._note_dropped(sum(map(len, given_up.values())))
        self._changed |= given_up.keys()
        return tuple(position for position in wanted if position not in given_up.get(number, ()))

    def begin_read(self, slots: Mapping[int, Slot], number: int, wanted: Sequence[int]) -> tuple[int, ...]:
        """The same for a read that takes the points as it comes to them: their room is no other read's meanwhile."""
        granted = self._coming[number] = self.make_room(slots, number, wanted)
        return granted

    def end_read(self, slots: Mapping[int, Slot], number: int) -> None:
        """It has taken them, or was given up. If others had to be granted too much beside it, points go now."""
        if self._coming.pop(number, ()) and number in slots:
            self.make_room(slots, number, ())

    def take_changed(self) -> set[int]:
        """Slots that gave points up since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def note_hit(self, rows: int) -> None:
        """A request went on from a point behind so many rows."""
        self._hits += 1
        self._rows += rows

    def counts(self, slots: Mapping[int, Slot]) -> dict[str, int]:
        """See `Statistics.checkpoints`."""
        return {"kept": len(_distinct(slots)), "dropped": self._dropped, "hits": self._hits, "rows": self._rows}

    def bytes_used(self, slots: Mapping[int, Slot]) -> int:
        """Of all points; one that several slots have counts once."""
        return sum(map(checkpoint_bytes, _distinct(slots)))

    def _held(self, number: int, slot: Slot) -> list[Kept]:
        """The points of a slot, also those that a read under way has not come to; it cannot give up those."""
        held: list[Kept] = list(slot.lasting_points)
        last = held[-1].position if held else 0
        return held + [WantedPoint(row, sys.maxsize) for row in self._coming.get(number, ()) if row > last]

    def _note_dropped(self, count: int) -> None:
        if count and not self._dropped:
            _log.warning(
                "checkpoints of conversations: there is room for %d, those used least lately are given up from now on; "
                "--checkpoint-gib says how much memory they have",
                self._budget.points,
            )
        self._dropped += count


def _distinct(slots: Mapping[int, Slot]) -> list[object]:
    found = {id(point.state): point.state for slot in slots.values() for point in slot.points}
    return list(found.values())
