"""Room for blobs in pieces of one memory: a blob is found by its address. Knows sizes; knows no expert."""

from bisect import bisect_right, insort
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

    def largest(self) -> torch.Tensor:
        """The memory of the largest piece. Raises ValueError if there is none."""
        return max((piece.memory for piece in self._pieces), key=torch.numel)

    def view(self, address: int) -> torch.Tensor:
        """The blob at an address, uint8. Raises ValueError if none begins there."""
        return self.run(address, 1)[0]

    def run(self, address: int, count: int) -> torch.Tensor:
        """Blobs one after another, uint8 [count, blob bytes]. Raises ValueError if they are not in one piece."""
        index = bisect_right(self._pieces, address, key=lambda piece: piece.begin) - 1
        if index >= 0:
            piece = self._pieces[index]
            offset, size = address - piece.begin, piece.blob_bytes
            if offset % size == 0 and offset + count * size <= piece.memory.numel():
                return piece.memory[offset : offset + count * size].view(count, size)
        raise ValueError(f"no blob begins at {address:#x}")
