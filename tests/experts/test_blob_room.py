"""Blobs by address: found where they begin, in the piece that holds them, and nowhere else."""

import pytest
import torch

from strata.experts.blob_room import BlobRoom


def room_of(*pieces: tuple[int, int]) -> tuple[BlobRoom, list[torch.Tensor]]:
    """Pieces of (blob bytes, blobs), every byte of a blob its number."""
    room, memories = BlobRoom(), []
    for size, count in pieces:
        memories.append(torch.arange(count, dtype=torch.uint8).repeat_interleave(size))
        room.add(size, memories[-1])
    return room, memories


def test_every_blob_is_found_by_its_address() -> None:
    room, memories = room_of((64, 3), (128, 2), (64, 5))
    assert room.total_bytes == 64 * 8 + 128 * 2
    addresses = room.addresses(64)
    assert addresses == [
        memories[piece].data_ptr() + 64 * blob for piece in (0, 2) for blob in range(memories[piece].numel() // 64)
    ]
    assert [int(room.view(address)[0]) for address in addresses] == [0, 1, 2, 0, 1, 2, 3, 4]
    assert room.view(room.addresses(128)[1]).tolist() == [1] * 128
    assert room.addresses(256) == []
    assert room.run(addresses[4], 3)[:, 0].tolist() == [1, 2, 3]


def test_what_is_no_blobs_begin_is_refused() -> None:
    room, (memory,) = room_of((64, 3))
    begin = memory.data_ptr()
    for address, count in ((begin + 1, 1), (begin - 64, 1), (begin + 192, 1), (begin + 64, 3), (0, 1)):
        with pytest.raises(ValueError, match="no blob begins at 0x"):
            room.run(address, count)


def test_the_size_that_takes_most_gives_up_its_last_piece() -> None:
    room, memories = room_of((64, 3), (64, 2), (128, 2))
    taken = [room.pop_of_most() for _ in range(3)]
    assert [(size, memory.data_ptr()) for size, memory in taken] == [
        (64, memories[1].data_ptr()),
        (128, memories[2].data_ptr()),
        (64, memories[0].data_ptr()),
    ]
    assert room.total_bytes == 0
    with pytest.raises(ValueError, match="no blob begins"):
        room.view(memories[0].data_ptr())
