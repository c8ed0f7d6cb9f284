"""Where the bytes of every expert lie: in main memory, in seats of a card's memory, or in either one alone.

Knows addresses and who they belong to; who has a seat is decided elsewhere, and so is when bytes are copied, at the
start (`store_filling.py`) and while windows run. Experts that have neither stay in the model's files. On the CPU "the
card's memory" is other main memory.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from strata.errors import ModelError
from strata.experts.blob_room import BlobRoom
from strata.experts.cache import ExpertId
from strata.experts.expert_files import FiledLayer, ReadCache
from strata.experts.host_memory import HostMemory, Pinning, anonymous_memory, take_host_memory
from strata.experts.store_plan import StorePlan, place_pieces, seat_pieces
from strata.hardware import read_cpu
from strata.quant.layout import BlobLayout
from strata.types import ProgressCallback


class ExpertStore:
    """Experts' bytes, and who holds which seat and which place. Not thread-safe.

    A *seat* is room for one blob in the card's memory, a *place* the same in main memory; both are given as views of
    their bytes, uint8 [blob bytes], whose `data_ptr()` is the address in the tables. Memory lives as long as the store.
    reads: gives those experts that have neither; None: there are none.
    """

    def __init__(
        self,
        plan: StorePlan,
        seats: Sequence[torch.Tensor],
        take_host: Callable[[Sequence[int]], HostMemory],
        reads: ReadCache | None = None,
    ) -> None:
        """seats: device memory, see `seat_pieces`; take_host: gives main memory, now and if seats are given up."""
        host = take_host([size * count for size, count in place_pieces(plan)])
        self.layers = tuple(layer.name for layer in plan.layers)
        self.experts = plan.has_seat.shape[1]
        self.blob_bytes = plan.blob_bytes
        self.is_exclusive = plan.is_exclusive
        self.reads = reads
        self._layouts = tuple(layer.layout for layer in plan.layers)
        self._take_host, self._hosts = take_host, [host]
        self._seats, self._places = BlobRoom(), BlobRoom()
        for (size, _), memory in zip(seat_pieces(plan), seats, strict=True):
            self._seats.add(size, memory)
        for (size, _), memory in zip(place_pieces(plan), host.pieces, strict=True):
            self._places.add(size, memory)
        # Addresses [layers, experts] of seats and of places, 0 where an expert has none. For reading only.
        self.resident, _ = _give_out(self._seats, plan, plan.seated)
        self.in_ram, self._spare = _give_out(self._places, plan, np.argwhere(plan.is_in_ram))

    @classmethod
    def create(
        cls,
        plan: StorePlan,
        device: torch.device,
        threads: int | None = None,
        pinning: Pinning | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> "ExpertStore":
        """Take the memory; nothing is filled. pinning: of main memory; None where no card reads it.

        Raises ModelError if main memory, torch's error if the card's memory is not there.
        """
        workers = threads or read_cpu().usable_cores
        seats = [_device_memory(size * count, device) for size, count in seat_pieces(plan)]
        reads = None
        if plan.has_place is not None:
            reads = ReadCache.create(list(_filed_layers(plan)), plan.cache_bytes, workers, on_progress)
        return cls(plan, seats, lambda sizes: take_host_memory(sizes, workers, pinning, on_progress), reads)

    @property
    def is_pinned(self) -> bool:
        """Whether a card can read main memory in place and copies run beside it."""
        return all(host.is_pinned for host in self._hosts)

    @property
    def notice(self) -> str | None:
        """A sentence for the user if memory was to be pinned and is not."""
        return next((host.notice for host in self._hosts if host.notice is not None), None)

    @property
    def seat_bytes(self) -> int:
        """What all seats take on the device."""
        return self._seats.total_bytes

    @property
    def ram_bytes(self) -> int:
        """What all places take in main memory, spare ones and room for experts that are read counted."""
        return self._places.total_bytes + (0 if self.reads is None else self.reads.memory.numel())

    @property
    def may_move(self) -> NDArray[np.bool_]:
        """[layers, experts]: who has a seat or a place, and not its bytes in files alone."""
        return (self.resident != 0) | (self.in_ram != 0)

    @property
    def held_ratio(self) -> float:
        """Bytes held in both memories for each byte of the experts: 1 and the spare places if exclusive, less where
        some stay in files."""
        return (self.seat_bytes + self.ram_bytes) / (int(self.blob_bytes.sum()) * self.experts)

    def layout(self, layer: int) -> BlobLayout:
        """Of the blobs of one layer."""
        return self._layouts[layer]

    def index(self, name: str) -> int:
        """The number of the layer with this prefix. Raises ValueError if there is none."""
        return self.layers.index(name)

    def seat(self, expert: ExpertId) -> torch.Tensor | None:
        """The seat that an expert has."""
        address = int(self.resident[expert])
        return self._seats.view(address) if address else None

    def place(self, expert: ExpertId) -> torch.Tensor | None:
        """The place that an expert has in main memory."""
        address = int(self.in_ram[expert])
        return self._places.view(address) if address else None

    def place_runs(self, layer: int, experts: Sequence[int]) -> list[torch.Tensor]:
        """The bytes of these experts in main memory in this order, uint8; neighbours in one piece are one tensor.

        Raises ValueError for one that has no place.
        """
        return self._places.runs(self.in_ram[layer, list(experts)].tolist())

    def take_seat(self, victim: ExpertId) -> torch.Tensor:
        """An expert loses its seat; the seat's bytes are the caller's from now on.

        Raises ValueError if it has none, or if its bytes are nowhere else.
        """
        seat = self.seat(victim)
        if seat is None or not self.in_ram[victim]:
            raise ValueError(f"{victim} cannot give up a seat: it has none, or no place")
        self.resident[victim] = 0
        return seat

    def give_seat(self, arrival: ExpertId, seat: torch.Tensor) -> None:
        """A seat that was taken holds this expert's bytes. Raises ValueError for one that does not fit."""
        if self.resident[arrival] or self._seats.view(seat.data_ptr()).numel() != self.blob_bytes[arrival.layer]:
            raise ValueError(f"{arrival} has a seat, or needs one of {self.blob_bytes[arrival.layer]} bytes")
        self.resident[arrival] = seat.data_ptr()

    def take_place(self, layer: int) -> torch.Tensor | None:
        """A spare place for a blob of this layer, the caller's from now on; None if there is none now."""
        spare = self._spare[int(self.blob_bytes[layer])]
        return self._places.view(spare.pop()) if spare else None

    def give_place(self, expert: ExpertId, place: torch.Tensor) -> None:
        """A place that was taken holds this expert's bytes. Raises ValueError for one that does not fit."""
        if self.in_ram[expert] or self._places.view(place.data_ptr()).numel() != self.blob_bytes[expert.layer]:
            raise ValueError(f"{expert} has a place, or needs one of {self.blob_bytes[expert.layer]} bytes")
        self.in_ram[expert] = place.data_ptr()

    def drop_place(self, expert: ExpertId) -> None:
        """An expert's place is spare. Raises ValueError if it has none, or if its bytes are nowhere else."""
        if not (self.in_ram[expert] and self.resident[expert]):
            raise ValueError(f"{expert} cannot give up a place: it has none, or no seat")
        self._spare[int(self.blob_bytes[expert.layer])].append(int(self.in_ram[expert]))
        self.in_ram[expert] = 0

    def give_up_seats(self, size: int) -> int:
        """Free at least so many bytes of the device's memory, or all seats; how many were. Before any window.

        An exclusive store takes main memory for the experts that sat there, unless they can be read from files;
        raises ModelError if there is none.
        """
        given_up = 0
        while given_up < size and self.seat_bytes:
            each, memory = self._seats.pop_of_most()
            self._move_to_ram(each, memory)
            given_up += memory.numel()
        return given_up

    def _move_to_ram(self, size: int, seats: torch.Tensor) -> None:
        """Nobody has a seat in this piece any more."""
        begin = seats.data_ptr()
        leaving = np.argwhere((self.resident >= begin) & (self.resident < begin + seats.numel()))
        takes_memory = self.is_exclusive and self.reads is None
        if takes_memory:
            host = self._take_host([seats.numel()])
            if self.is_pinned and host.notice is not None:
                raise ModelError(host.notice)  # a card may already read what lies in main memory in place
            (memory,) = host.pieces
            memory.copy_(seats)
            self._hosts.append(host)
            self._places.add(size, memory)
        for layer, expert in leaving.tolist():
            if takes_memory:
                self.in_ram[layer, expert] = memory.data_ptr() + int(self.resident[layer, expert]) - begin
            self.resident[layer, expert] = 0


def _filed_layers(plan: StorePlan) -> Iterator[FiledLayer]:
    for layer in plan.layers:
        assert layer.published is not None  # the plan was refused otherwise
        yield FiledLayer(layer.name, layer.layout, layer.published)


def _give_out(
    room: BlobRoom, plan: StorePlan, to_whom: NDArray[np.int64]
) -> tuple[NDArray[np.int64], dict[int, list[int]]]:
    """Addresses [layers, experts] for those of `to_whom` [n, 2] in this order; and the addresses left over, by size."""
    given = np.zeros(plan.has_seat.shape, np.int64)
    layers, experts = to_whom.T
    left = {}
    for size in np.unique(plan.blob_bytes).tolist():
        is_of_size = plan.blob_bytes[layers] == size
        addresses, count = room.addresses(size), int(is_of_size.sum())
        given[layers[is_of_size], experts[is_of_size]] = addresses[:count]
        left[size] = addresses[count:]
    return given, left


def _device_memory(size: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return anonymous_memory(size)
    return torch.empty(size, dtype=torch.uint8, device=device)
