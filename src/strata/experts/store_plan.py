"""What a store of experts is to hold, and in which pieces memory is taken for it.

Pure: knows sizes and counts, and no byte of an expert.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.experts.sources import PublishedExperts
from strata.quant.layout import BlobLayout

SEAT_PIECE_BYTES = 256 << 20  # of the card's memory that is taken, and given up, at once
MOST_SPARE_PLACES = 64  # of one blob size: swaps of an exclusive store that are under way at once
SPARE_SHARE = 0.02  # of the experts of a size, at most; one place is always there


@dataclass(frozen=True)
class StoreLayer:
    """A layer with experts: its prefix, such as `model.layers.3.mlp.`, and the layout of its blobs."""

    name: str
    layout: BlobLayout
    published: PublishedExperts | None = None  # in the model's files; None: nothing is read from there later


@dataclass(frozen=True)
class StorePlan:
    """What a store is to hold. Raises ValueError if layers and experts do not agree with `has_seat`."""

    layers: tuple[StoreLayer, ...]
    has_seat: NDArray[np.bool_]  # [layers, experts]
    is_exclusive: bool = False  # main memory holds only experts without a seat, and a few spare places
    heat: NDArray[np.floating] | None = None  # [layers, experts]: the coldest lose their seats first, if seats go
    # Who has a place in main memory [layers, experts]; None: all, or if exclusive all without a seat. Who has neither
    # is read from the model's files when it is asked for, into `cache_bytes` of main memory.
    has_place: NDArray[np.bool_] | None = None
    cache_bytes: int = 0

    def __post_init__(self) -> None:
        if self.has_seat.ndim != 2 or len(self.has_seat) != len(self.layers):
            raise ValueError(f"{len(self.layers)} layers, and seats of shape {self.has_seat.shape}")
        if self.has_place is not None:
            if not self.is_exclusive or (self.has_place & self.has_seat).any():
                raise ValueError("beside experts that stay in files, a place is only for those without a seat")
            if self.cache_bytes < self.blob_bytes.max() or any(layer.published is None for layer in self.layers):
                raise ValueError("experts that stay in files need files, and memory for one that is read")

    @property
    def blob_bytes(self) -> NDArray[np.int64]:
        """[layers]: of one expert."""
        return np.array([layer.layout.total_bytes for layer in self.layers], np.int64)

    @property
    def seated(self) -> NDArray[np.int64]:
        """Layers and experts with a seat [n, 2], the hottest first; equals expert by expert through all layers."""
        found = np.argwhere(self.has_seat.T)[:, ::-1]
        if self.heat is None:
            return found
        return found[np.argsort(-self.heat[tuple(found.T)], kind="stable")]

    @property
    def is_in_ram(self) -> NDArray[np.bool_]:
        """[layers, experts]: who has a place there at the start."""
        if self.has_place is not None:
            return self.has_place
        return ~self.has_seat if self.is_exclusive else np.ones_like(self.has_seat)

    def seats(self) -> dict[int, int]:
        """How many seats there are, by blob size."""
        return self._count(self.has_seat)

    def places(self) -> dict[int, int]:
        """How many places main memory has, spare ones counted, by blob size."""
        spare = self.spare_places()
        return {size: count + spare[size] for size, count in self._count(self.is_in_ram).items()}

    def spare_places(self) -> dict[int, int]:
        """Of the places, how many hold no expert, by blob size."""
        all_, seats = self._count(np.ones_like(self.has_seat)), self.seats()
        return {size: spare_places(all_[size], seats[size]) if self.is_exclusive else 0 for size in all_}

    def _count(self, is_meant: NDArray[np.bool_]) -> dict[int, int]:
        sizes = self.blob_bytes
        return {int(size): int(is_meant[sizes == size].sum()) for size in np.unique(sizes)}


def spare_places(experts: int, seats: int) -> int:
    """Places of an exclusive store that hold no expert, so that some can trade places: of one blob size."""
    return min(seats, max(1, min(MOST_SPARE_PLACES, int(experts * SPARE_SHARE))))


def seat_pieces(plan: StorePlan) -> list[tuple[int, int]]:
    """(blob bytes, seats) of the pieces that the device's memory is taken in."""
    return [
        piece for size, seats in plan.seats().items() for piece in _cut(size, seats, max(1, SEAT_PIECE_BYTES // size))
    ]


def place_pieces(plan: StorePlan) -> list[tuple[int, int]]:
    """(blob bytes, places) of the pieces that main memory is taken in.

    A piece has as many places as a layer has experts, or fewer: it is pinned as a whole, and no blob lies in two.
    """
    experts = plan.has_seat.shape[1]
    return [piece for size, places in plan.places().items() for piece in _cut(size, places, experts)]


def _cut(size: int, count: int, most: int) -> list[tuple[int, int]]:
    whole, rest = divmod(count, most)
    return [(size, most)] * whole + [(size, rest)] * (rest > 0)
