"""Room for blobs in pieces of one memory: a blob is found by its address. Knows sizes; knows no expert."""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Piece:
    """Blobs of one size, one after another."""

    begin: int  # address
    blob_bytes: int
    memory: torch.Tensor  # uint8


class BlobRoom:
    """Pieces of a memory; blobs are given as views of their bytes."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []  # in order of their addresses
        self._by_size: dict[int, list[Piece]] = {}  # in the order in which they were added

    @property
    def total_bytes(self) -> int:
        """Of all pieces."""
        return sum(piece.memory.numel() for piece in self._pieces)

    def add(self, blob_bytes: int, memory: torch.Tensor) -> None:
        """One more piece, not empty."""
        piece = Piece(memory.data_ptr(), blob_bytes, memory)
        insort(self._pieces, piece, key=lambda each: each.begin)
        self._by_size.setdefault(blob_bytes, []).append(piece)

    def pop_of_most(self) -> tuple[int, torch.Tensor]:
        """The last piece of the blob size that takes most: blob bytes and memory, which is the caller's."""

        def taken(size: int) -> int:
            return sum(piece.memory.numel() for piece in self._by_size[size])

        size = max(self._by_size, key=taken)
        piece = self._by_size[size].pop()
        self._pieces.remove(piece)
        return size, piece.memory

    def addresses(self, blob_bytes: int) -> list[int]:
        """Of all blobs of a size, piece by piece."""
        return [
            address
            for piece in self._by_size.get(blob_bytes, ())
            for address in range(piece.begin, piece.begin + piece.memory.numel(), blob_bytes)
        ]

    def view(self, address: int) -> torch.Tensor:
        """The blob at an address, uint8. Raises ValueError if none begins there."""
        return self.run(address, 1)[0]

    def run(self, address: int, count: int) -> torch.Tensor:
        """Blobs one after another, uint8 [count, blob bytes]. Raises ValueError if they are not in one piece."""
        piece = self._piece_at(address)
        offset, size = address - piece.begin, piece.blob_bytes
        if offset % size or offset + count * size > piece.memory.numel():
            raise ValueError(f"no blob begins at {address:#x}, or not {count} of them")
        return piece.memory[offset : offset + count * size].view(count, size)

    def runs(self, addresses: Sequence[int]) -> list[torch.Tensor]:
        """The blobs at these addresses in order, uint8; those that lie one behind another in a piece are one tensor.

        Raises ValueError if no blob begins at one of them.
        """
        found: list[torch.Tensor] = []
        start = 0
        while start < len(addresses):
            piece, stop = self._piece_at(addresses[start]), start + 1
            behind = addresses[start] + piece.blob_bytes
            end = piece.begin + piece.memory.numel()
            while stop < len(addresses) and addresses[stop] == behind < end:
                stop, behind = stop + 1, behind + piece.blob_bytes
            found.append(self.run(addresses[start], stop - start).view(-1))
            start = stop
        return found

    def _piece_at(self, address: int) -> Piece:
        index = bisect_right(self._pieces, address, key=lambda piece: piece.begin) - 1
        if index < 0:
            raise ValueError(f"no blob begins at {address:#x}")
        return self._pieces[index]
