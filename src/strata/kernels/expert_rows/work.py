"""Which experts compute which rows, and where their blobs are. Knows no arithmetic and no device."""

from dataclasses import dataclass

import torch

from strata.quant.layout import BLOB_ALIGNMENT, BlobLayout


@dataclass(frozen=True)
class ExpertBlobs:
    """Blobs of one layout: one after another in `memory`, or anywhere, at the addresses in `addresses`.

    memory: uint8 [seats * stride]; addresses: int64 [seats] on the computing device, multiples of 256, of blobs in
    `memory`, or in host memory that the device reads in place (pinned), which somebody else keeps alive.
    """

    layout: BlobLayout
    memory: torch.Tensor
    addresses: torch.Tensor | None = None

    @property
    def stride(self) -> int:
        """Bytes from one blob in `memory` to the next."""
        return self.layout.total_bytes

    @property
    def seats(self) -> int:
        """How many blobs there are."""
        return self.memory.numel() // self.stride

    @classmethod
    def in_place(cls, layout: BlobLayout, pinned: torch.Tensor, device: torch.device) -> "ExpertBlobs":
        """Blobs one after another in pinned host memory, read from `device` where they are."""
        start = pinned.data_ptr()
        if start % BLOB_ALIGNMENT:
            raise ValueError(f"blobs begin at address {start}, which is no multiple of {BLOB_ALIGNMENT}")
        seats = pinned.numel() // layout.total_bytes
        addresses = torch.arange(seats, dtype=torch.int64) * layout.total_bytes + start
        return cls(layout, pinned, addresses.to(device))


@dataclass(frozen=True)
class ExpertWork:
    """Distinct experts and their places. A place is row * ranks + rank of an activation row and a routing rank.

    Entry e: the blob in seat `seats[e]` computes the places `places[starts[e] : starts[e + 1]]`; an entry may be empty.
    All are int32 tensors on the computing device: seats [entries], starts [entries + 1], places and rows [positions].
    """

    seats: torch.Tensor
    starts: torch.Tensor
    places: torch.Tensor
    rows: torch.Tensor  # place // ranks
    ranks: int
    most_rows: int  # no entry has more places: decides how many rows are computed at once, never a result

    @classmethod
    def empty(cls, rows: int, ranks: int, device: torch.device | str) -> "ExpertWork":
        """Room for all places of `rows` rows, each of which may need an entry of its own; nothing is listed yet."""
        places = rows * ranks

        def room(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int32, device=device)

        return cls(room(places), room(places + 1), room(places), room(places), ranks, most_rows=rows)

    @classmethod
    def from_choices(cls, experts: torch.Tensor) -> "ExpertWork":
        """experts [rows, ranks] of any integer type -> each distinct expert once, its places rising."""
        rows, ranks = experts.shape
        flat = experts.reshape(-1)
        order = torch.argsort(flat, stable=True)
        seats, counts = torch.unique_consecutive(flat[order], return_counts=True)
        starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        return cls(seats.int(), starts.int(), order.int(), (order // ranks).int(), ranks, most_rows=rows)
