"""Conversations whose slots were wanted: they lie in main memory, in places numbered behind the slots.

Pure: books, bytes, ranks. A conversation is parked if it has rows enough, and if there is room once those of lower rank
have given way. A rank is what reading it again would cost for each byte it takes, on top of the rank of the last one
that gave way (GreedyDual-Size): a conversation that nobody comes back to is overtaken, one that is worth little sooner.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strata.engine.steps import Park, ParkingSpace
from strata.scheduler.slots import SlotBook, Start, kept_places

LEAST_ROWS = 256  # of a conversation; fewer are read again, together with what is new


@dataclass(frozen=True)
class Way:
    """How a prompt gets its slot: `Open.park` and `Open.dropped` beside where it starts."""

    start: Start
    park: Park | None = None
    dropped: tuple[int, ...] = ()


class ParkedBooks:
    """The books of all places."""

    def __init__(self, space: ParkingSpace, first_place: int, *, keep_turns: bool) -> None:
        self._space, self._first, self._keep_turns = space, first_place, keep_turns
        self._books: dict[int, SlotBook] = {}  # a book's end is its `turn_end`, and no token lies behind it
        self._sizes: dict[int, int] = {}
        self._floor = 0.0  # rank of the last conversation that gave way
        self._parked = self._dropped = self._returned = self._rows = 0

    @property
    def books(self) -> Sequence[SlotBook]:
        """Of the conversations that are parked."""
        return tuple(self._books.values())

    def get(self, place: int) -> SlotBook | None:
        """The book of a place, if something is there."""
        return self._books.get(place)

    @property
    def used(self) -> int:
        """Bytes of all of them."""
        return sum(self._sizes.values())

    def make_way(self, start: Start, slot: SlotBook) -> Way:
        """Write down what becomes of the conversation in the start's slot, and of parked ones; `slot` is as it was.

        Where the prompt was to go on from a small part of that conversation, it goes on from the parked one.
        """
        rows = max(kept_places(slot, keep_turns=self._keep_turns), default=0)
        park: Park | None = None
        dropped: tuple[int, ...] = ()
        if self._space.limit and start.displaces and rows >= LEAST_ROWS:
            size = self._space.size(rows)
            given_up = self._given_up(slot.worth / size, size, start.source)
            if given_up is not None:
                dropped = tuple(map(self.drop, given_up))
                park = Park(self._free_place(dropped), slot.tokens[:rows])
                self._add(park.place, slot, rows, size)
                if start.source == start.slot:
                    start = replace(start, source=park.place, cuts_short=False)
        if start.takes_over:
            assert start.source is not None, "what is taken over lies in a place"
            dropped = (*dropped, start.source)
        return Way(start, park, dropped)

    def note_hit(self, start: Start) -> None:
        """A prompt goes on from a place; one that is taken over is free."""
        if start.source is not None and start.source in self._books:
            self._returned += 1
            self._rows += start.position
            if start.takes_over:
                self._forget(start.source)

    def lose(self, place: int) -> None:
        """The engine does not have it."""
        self._dropped += 1
        self._forget(place)

    def drop(self, place: int) -> int:
        """It gives way; returns the place."""
        self._floor = max(self._floor, self._books[place].rank)
        self.lose(place)
        return place

    def cut(self, request_id: int, kept: int) -> tuple[int, ...]:
        """Cut the conversation of a request that has ended behind so many tokens of its reply, if it is here.

        What lies at its end is then no state of it any more, and it is gone on with from its points alone. Returns the
        tokens of the turn that is lost by that.
        """
        book = next((each for each in self._books.values() if each.last_request == request_id), None)
        if book is None or len(book.tokens) < book.prompt_tokens + kept:
            return ()
        book.keep_reply(kept)
        lost, book.turn_end = book.tokens[: book.turn_end or 0], None
        return lost

    def counts(self) -> dict[str, int]:
        """See `Statistics.parked`; empty: there is no room for any."""
        if not self._space.limit:
            return {}
        counted = {"parked": self._parked, "dropped": self._dropped, "returned": self._returned, "rows": self._rows}
        return {"kept": len(self._books), "bytes": self.used, "room": self._space.limit, **counted}

    def _given_up(self, worth: float, size: int, source: int | None) -> list[int] | None:
        """Places that give way to `size` bytes of this worth each; None: they are worth more, or it never fits.

        The source of a prompt stays until it has been copied.
        """
        staying = self._sizes.get(source, 0) if source is not None else 0
        if size + staying > self._space.limit:
            return None
        rank = self._floor + worth
        given_up: list[int] = []
        left = self._space.limit - self.used
        for book in sorted(self._books.values(), key=lambda book: (book.rank, book.last_use)):
            if left >= size:
                break
            if book.index == source:
                continue
            if book.rank > rank:
                self._floor = rank  # as if it had been parked and had given way at once
                return None
            given_up.append(book.index)
            left += self._sizes[book.index]
        return given_up

    def _add(self, place: int, slot: SlotBook, rows: int, size: int) -> None:
        self._parked += 1
        self._sizes[place] = size
        self._books[place] = replace(
            slot,
            index=place,
            tokens=slot.tokens[:rows],
            points=tuple(point for point in slot.points if point <= rows),
            turn_end=rows,
            rank=self._floor + slot.worth / size,
        )

    def _free_place(self, dropped: Sequence[int]) -> int:
        """The first one where nothing is; one that becomes free with the same step would be named for two things."""
        taken = self._books.keys() | set(dropped)
        return next(place for place in itertools.count(self._first) if place not in taken)

    def _forget(self, place: int) -> None:
        del self._books[place], self._sizes[place]
