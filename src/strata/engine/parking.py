"""Moves an engine's conversations between its slots and places in main memory, as the scheduler says in an `Open`.

Knows slots by number; which conversation is worth its room is decided by the scheduler, how a state is moved is the
model's matter. What fails here never ends a request: a conversation is lost, and its prompt is read again.
"""

import logging

from strata.engine.failures import is_requests_failure, request_error
from strata.engine.point_keeper import PointKeeper
from strata.engine.slot import Slot
from strata.engine.steps import Open

LOST = "the conversation was lost on its way to or from main memory, and was read again"
_log = logging.getLogger("strata.parking")


class Parking:
    """Of one engine, over its slots by number: parked ones have the numbers of their places."""

    def __init__(self, slots: dict[int, Slot], keeper: PointKeeper) -> None:
        self._slots, self._keeper = slots, keeper
        self._moving: Slot | None = None  # the last one that was moved or opened, until all is copied

    def make_way(self, step: Open) -> bool:
        """Drop what gives way to a request, and park what its slot holds; whether that is parked now."""
        self.finish()
        for place in step.dropped:
            if place != step.source:
                self._drop(place)
        slot = None if step.park is None else self._slots.get(step.slot)
        if step.park is None or slot is None:
            return False
        try:
            is_parked = slot.park(step.park.tokens)
        except Exception as failure:
            if not is_requests_failure(failure):
                raise
            _log.warning("a conversation could not be moved to main memory: %s", request_error(failure))
            self._drop(step.slot)
            return False
        if is_parked:
            self._moving = self._slots[step.park.place] = self._slots.pop(step.slot)
            self._keeper.make_room(self._slots, step.park.place, ())
        return is_parked

    def source_of(self, step: Open) -> int | None:
        """Where the request goes on from, None if nowhere any more.

        Its own slot, if what that holds was to be parked and there was no room.
        """
        is_new = step.park is not None and step.source == step.park.place
        if step.source in self._slots or not (is_new or step.source in step.dropped):
            return step.source
        return step.slot if is_new and step.slot in self._slots else None

    def bring_back(self, place: int, step: Open, use: int) -> tuple[str, ...]:
        """Move a parked conversation into the step's slot, which is empty, as far as it is gone on with.

        use: number of the request. A sentence for the user if that failed.
        """
        slot = self._slots.pop(place)
        try:
            slot.continued(step.position, step.request.prompt, use)
            slot.unpark()
        except Exception as failure:
            if not is_requests_failure(failure):
                raise
            slot.release()
            why = request_error(failure)
            return (f"the conversation could not be brought back from main memory, and was read again: {why}",)
        self._slots[step.slot] = slot
        return ()

    def note_opened(self, slot: Slot) -> None:
        """Before rows of it are computed, what was moved for it has to be copied."""
        self._moving = slot

    def moves_on(self) -> bool:
        """Launch the next part of what is to be copied; False: nothing is."""
        if self._moving is not None and not self._moving.moves_on():
            self._moving = None
        return self._moving is not None

    def finish(self) -> None:
        """Launch all of it."""
        while self.moves_on():
            pass

    def bytes_used(self) -> int:
        """Of the parked ones."""
        return sum(slot.bytes_used() for slot in self._slots.values() if slot.is_parked)

    def _drop(self, place: int) -> None:
        slot = self._slots.pop(place, None)
        if slot is not None:
            slot.release()
