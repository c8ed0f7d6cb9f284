"""Experts change seats while windows run: the cache's decisions carried out, a step further before each launch.

Knows in which order bytes and addresses move; who gives way is decided by the cache, what an address means to a window
is the tables' matter. Nothing here waits for the device, and whatever fails, every address that a window can see leads
to the right bytes.

    CHOSEN    exclusive stores begin here: side: victim's seat -> spare place
    SAVING    once that is done: the victim's address in main memory
    KEPT      others begin here: main: the victim has no seat
    EMPTY     side, behind that: arrival's bytes -> seat
    LANDING   once that is done: main: the arrival has the seat
    SEATED    main: a mark behind that
    SETTLING  once that is passed: an exclusive store's place of the arrival is spare; done
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from strata.experts.asked_counts import AskedCounts
from strata.experts.cache import ExpertCache, Swap, SwapRule
from strata.experts.store import ExpertStore
from strata.experts.streams import Mark, Streams

ROUNDS_UNDER_WAY = 2  # a swap takes three or four launches, longer than the windows between two rounds


class Tables(Protocol):
    """What windows look addresses up in; `experts.tiers.ExpertTiers` is one."""

    def set_resident(self, layer: int, expert: int, address: int) -> None:
        """On the main road: from the next launch on this seat holds the expert, 0: none does."""
        ...

    def set_in_ram(self, layer: int, expert: int, address: int) -> None:
        """On the main road, and for the CPU at once: where the expert lies in main memory, 0: it does not."""
        ...


class Step(Enum):
    """How far a swap has come."""

    CHOSEN = auto()
    SAVING = auto()
    KEPT = auto()
    EMPTY = auto()
    LANDING = auto()
    SEATED = auto()
    SETTLING = auto()


@dataclass(eq=False)
class Move:
    """A swap under way and the memory that it holds."""

    swap: Swap
    step: Step
    place: torch.Tensor | None  # spare, for the victim: CHOSEN and SAVING
    seat: torch.Tensor | None = None  # nobody's: EMPTY and LANDING
    mark: Mark | None = None  # behind what was asked for last: SAVING, LANDING and SETTLING


class Swapper:
    """Follows what windows ask for. Not thread-safe: called by whoever launches, before each launch."""

    def __init__(
        self, store: ExpertStore, tables: Tables, asked: torch.Tensor, streams: Streams, rule: SwapRule
    ) -> None:
        """asked: the device's counters, int32 [layers, experts]. A rule of no swaps counts and moves nothing.

        Main memory must be pinned where anything is to be moved beside a GPU.
        """
        self.heat = np.zeros(asked.shape, np.float64)  # decode windows that asked for each expert
        self.swaps = 0  # done so far
        self._store, self._tables, self._streams, self._rule = store, tables, streams, rule
        self._counts = AskedCounts(asked, streams)
        self._cache = ExpertCache(store.resident != 0, store.blob_bytes.tolist(), rule)
        self._prompts: list[NDArray[np.int32]] = []  # that were read since the last launch
        self._moves: list[Move] = []

    def note_prompt(self, asked: NDArray[np.int32]) -> None:
        """asked [layers, experts]: how many of a prompt's last rows took each expert.

        They count as windows of one row would: a reply goes on much as its prompt ended. Experts that nobody else asks
        for give way, by the cache's own rule and at its own pace; `heat` is of decode windows alone.
        """
        self._prompts.append(asked)

    def before_launch(self, is_read: bool) -> None:
        """Take every step that is due, and begin swaps if new counts have come. The launch is a window's or a read's.

        What an error leaves is taken up again by the next call.
        """
        self._settle()
        self._land()
        self._keep_victims()
        grown = self._counts.take()
        if grown is not None:
            self.heat += grown
            self._begin(grown)
        while self._prompts:
            self._begin(self._prompts.pop(0))
        self._save_victims()
        self._empty_seats()
        self._fill_seats()
        self._counts.before_launch(is_read=is_read, every=self._rule.every)

    def close(self) -> None:
        """Wait for copies and windows, so that their memory may go; swaps that are not done never will be."""
        self._streams.wait()
        self._moves.clear()

    def _begin(self, grown: NDArray[np.int32]) -> None:
        most = ROUNDS_UNDER_WAY * self._rule.most_swaps - len(self._moves)
        for swap in self._cache.note_counts(grown, most, self._store.may_move):
            place = self._store.take_place(swap.victim.layer) if self._store.is_exclusive else None
            if self._store.is_exclusive and place is None:
                self._cache.call_off(swap)
            else:
                self._moves.append(Move(swap, Step.KEPT if place is None else Step.CHOSEN, place))

    def _save_victims(self) -> None:
        chosen = self._all_in(Step.CHOSEN)
        for move in chosen:
            self._streams.copy_beside(_given(self._store.seat(move.swap.victim)), _given(move.place))
        self._wait_in(Step.SAVING, chosen, self._streams.mark_side)

    def _keep_victims(self) -> None:
        for move in self._passed(Step.SAVING):
            place = _given(move.place)
            self._tables.set_in_ram(*move.swap.victim, place.data_ptr())
            self._store.give_place(move.swap.victim, place)
            move.step, move.place = Step.KEPT, None

    def _empty_seats(self) -> None:
        for move in self._all_in(Step.KEPT):
            self._tables.set_resident(*move.swap.victim, 0)
            move.seat = self._store.take_seat(move.swap.victim)
            move.step = Step.EMPTY

    def _fill_seats(self) -> None:
        """Behind all windows that may still read the victims there."""
        empty = self._all_in(Step.EMPTY)
        if empty:
            self._streams.hold_side(self._streams.mark_main())
        for move in empty:
            self._streams.copy_beside(_given(self._store.place(move.swap.arrival)), _given(move.seat))
        self._wait_in(Step.LANDING, empty, self._streams.mark_side)

    def _land(self) -> None:
        for move in self._passed(Step.LANDING):
            seat = _given(move.seat)
            self._tables.set_resident(*move.swap.arrival, seat.data_ptr())
            self._store.give_seat(move.swap.arrival, seat)
            move.step, move.seat = Step.SEATED, None
        self._wait_in(Step.SETTLING, self._all_in(Step.SEATED), self._streams.mark_main)

    def _settle(self) -> None:
        """No window in flight looks for these arrivals in main memory; from now on they may give way themselves."""
        for move in self._passed(Step.SETTLING):
            if self._store.is_exclusive:
                self._tables.set_in_ram(*move.swap.arrival, 0)
                self._store.drop_place(move.swap.arrival)
            self._cache.land(move.swap.arrival)
            self._moves.remove(move)
            self.swaps += 1

    def _all_in(self, step: Step) -> list[Move]:
        return [move for move in self._moves if move.step is step]

    def _passed(self, step: Step) -> list[Move]:
        """In the order in which they came, none before an earlier one: a victim may come back behind its own move.

        Marks of a road are passed in order, but one may be passed between two looks.
        """
        return list(takewhile(lambda move: _given_mark(move).is_passed(), self._all_in(step)))

    def _wait_in(self, step: Step, moves: list[Move], take_mark: Callable[[], Mark]) -> None:
        """They go on once a mark that is taken now is passed."""
        if moves:
            mark = take_mark()
            for move in moves:
                move.step, move.mark = step, mark


def _given_mark(move: Move) -> Mark:
    assert move.mark is not None, "who waits has a mark to wait for"
    return move.mark


def _given(memory: torch.Tensor | None) -> torch.Tensor:
    assert memory is not None, "a step has what the steps before it took"
    return memory
