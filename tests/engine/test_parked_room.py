"""Bytes for parked conversations: ranges of one memory, however they lie; faults of the memory itself."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine import parked_room
from strata.engine.parked_extents import Extents
from strata.engine.parked_room import ParkedRoom
from strata.errors import ModelError
from strata.experts.host_memory import Pinning

SIZE = 1000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 20)), max_size=60))
def test_what_is_free_is_found_and_nobodys_bytes_are_anothers(actions: list[tuple[int, int]]) -> None:
    extents, held = Extents(SIZE), [0] * SIZE
    taken = []
    for number, (size, given_back) in enumerate(actions, start=1):
        found = extents.take(size)
        assert (found is not None) == (size <= held.count(0))
        for start, stop in found or ():
            assert start < stop and set(held[start:stop]) == {0}
            held[start:stop] = [number] * (stop - start)
        if found is not None:
            assert held.count(number) == size
            taken.append(found)
        if given_back < len(taken):
            ranges = taken.pop(given_back)
            extents.give_back(ranges)
            for start, stop in ranges:
                held[start:stop] = [0] * (stop - start)
        assert extents.free_bytes == held.count(0)
    for ranges in taken:
        extents.give_back(ranges)
    assert extents.take(SIZE) == ((0, SIZE),), "gaps that touch are one again"


def test_the_smallest_gap_that_is_enough_is_taken() -> None:
    extents = Extents(100)
    first, second, third = (extents.take(size) for size in (30, 40, 20))
    assert first and second and third
    extents.give_back(first)
    extents.give_back(third)  # beside the ten bytes that were never taken
    assert extents.take(30) == ((0, 30),)
    extents.give_back(first)
    assert extents.take(5) == ((0, 5),)
    assert extents.take(20) == ((5, 25),), "of 25 and 30 bytes the smaller gap"
    assert extents.take(32) == ((70, 100), (25, 27)), "the largest first where none is enough"
    assert Extents(0).take(1) is None


def test_bytes_are_counted_over_their_ranges() -> None:
    room = ParkedRoom(300, None)
    places = [room.take(100) for _ in range(3)]
    assert room.take(1) is None
    for place in (places[0], places[2]):
        assert place is not None
        place.release()
        place.release()
    both = room.take(200)
    assert both is not None and room.free_bytes == 0
    for start, stop in ((0, 200), (20, 150), (100, 101), (0, 0), (150, 200)):
        assert sum(map(len, both.views(start, stop))) == stop - start
    torch.cat(list(both.views(0, 200)))  # views, one after another
    for number, view in enumerate(both.views(90, 110)):
        view.fill_(number + 1)
    assert torch.cat(list(both.views(88, 112))).tolist() == [0] * 2 + [1] * 10 + [2] * 10 + [0] * 2
    both.release()
    assert room.free_bytes == 200


def test_memory_is_pinned_as_a_whole_and_let_go_with_the_room() -> None:
    pinned: list[tuple[int, int]] = []
    unpinned: list[int] = []

    def pin(address: int, size: int) -> str | None:
        pinned.append((address, size))
        return None

    room = ParkedRoom(1 << 16, Pinning(pin, unpinned.append))
    ((address, size),) = pinned
    assert (size, room.is_pinned, room.notice) == (1 << 16, True, None)
    del room
    gc.collect()
    assert unpinned == [address]


def test_a_system_that_does_not_pin_is_told_of_and_the_room_is_there() -> None:
    room = ParkedRoom(1 << 16, Pinning(lambda address, size: "CUDA says 2", lambda address: None))
    assert room.notice is not None and "does not pin the 0.0 GiB for parked conversations" in room.notice
    assert (room.is_pinned, room.free_bytes) == (False, 1 << 16)


def test_a_system_that_gives_no_memory_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> torch.Tensor:
        raise ModelError("the system does not give it")

    monkeypatch.setattr(parked_room, "anonymous_memory", refuse)
    room = ParkedRoom(3 << 30, None)
    assert room.notice is not None and "does not give 3.0 GiB for parked conversations" in room.notice
    assert (room.size, room.take(1)) == (0, None)
