"""Pieces of main memory for points: of one size, apart, used again; faults of the memory itself."""

import gc

import pytest
import torch

from strata.engine import checkpoint_room
from strata.engine.checkpoint_room import CheckpointRoom, PartShape
from strata.errors import ModelError
from strata.experts.host_memory import Pinning

PARTS = (PartShape((3, 5), torch.float32), PartShape((7,), torch.bfloat16), PartShape((1, 2), torch.int32))


class Owner:
    """Whoever has a piece."""


def like() -> list[torch.Tensor]:
    return [torch.empty(part.shape, dtype=part.dtype) for part in PARTS]


def test_pieces_share_nothing_and_are_as_wanted() -> None:
    room = CheckpointRoom(PARTS, 3, None)
    owners = [Owner() for _ in range(3)]
    taken = [room.take(owner, like()) for owner in owners]
    assert room.piece_bytes == 3 * 256
    for number, piece in enumerate(taken):
        for part in piece:
            part.fill_(number + 1)
    for number, piece in enumerate(taken):
        for part, wanted in zip(piece, PARTS, strict=True):
            assert (part.shape, part.dtype) == (wanted.shape, wanted.dtype)
            assert bool((part == number + 1).all())


def test_a_piece_is_free_again_when_its_owner_is_gone() -> None:
    room = CheckpointRoom(PARTS, 1, None)
    owner = Owner()
    address = room.take(owner, like())[0].data_ptr()
    assert room.free_pieces == 0
    del owner
    gc.collect()
    assert room.free_pieces == 1
    other = Owner()
    assert room.take(other, like())[0].data_ptr() == address


def test_where_no_piece_is_free_there_is_other_memory() -> None:
    room, owners = CheckpointRoom(PARTS, 1, None), [Owner(), Owner()]
    first, second = (room.take(owner, like()) for owner in owners)
    assert [part.shape for part in second] == [part.shape for part in PARTS]
    assert first[0].data_ptr() != second[0].data_ptr()
    del owners
    gc.collect()
    assert room.free_pieces == 1  # the other memory is nobody's piece


def test_memory_is_pinned_once_and_let_go_with_the_room() -> None:
    pinned: list[tuple[int, int]] = []
    unpinned: list[int] = []
    pinning = Pinning(lambda address, size: pinned.append((address, size)), unpinned.append)
    room = CheckpointRoom(PARTS, 4, pinning)
    ((address, size),) = pinned
    assert (size, room.notice) == (4 * room.piece_bytes, None)
    owner = Owner()
    room.take(owner, like())
    del room
    gc.collect()
    assert unpinned == []  # a piece of it is still in use
    del owner
    gc.collect()
    assert unpinned == [address]


def test_a_system_that_does_not_pin_is_told_of_and_the_pieces_are_there() -> None:
    room = CheckpointRoom(PARTS, 2, Pinning(lambda address, size: "CUDA says 2", lambda address: None))
    assert room.notice is not None
    assert "does not pin the 0.0 GiB for checkpoints (CUDA says 2)" in room.notice
    assert room.free_pieces == 2


def test_a_system_that_gives_no_memory_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> torch.Tensor:
        raise ModelError("the system does not give it")

    monkeypatch.setattr(checkpoint_room, "anonymous_memory", refuse)
    room = CheckpointRoom(PARTS, 2, None)
    assert room.notice == "the system does not give 0.0 GiB for checkpoints: only the last ones are kept"
    assert room.free_pieces == 0
