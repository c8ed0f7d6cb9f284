"""A layer's experts as the rows of a prompt use them: those with a seat where they are, the others sent through a ring.

Knows addresses, tiles and in which order bytes move; knows no row. A tile is up to 64 experts that lie in the card's
memory for a moment: three of them make a ring, so that two can be on their way while one is used. Every tile is sent
once for all rows of a chunk. While rows pass the layers nobody changes seats: addresses were looked up before. The
ring goes on from one chunk to the next: the copies of the next one begin while the last layer of this one is computed.

    side road   tile 0 │ tile 1 │ tile 2 │ tile 3 (once tile 0 was used) │ …
    main road            residents │ tile 0 │ tile 1 │ …
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from strata.experts.feed import Copying, ExpertBatch
from strata.experts.staging import Staging
from strata.experts.streams import Mark, Streams

TILE_EXPERTS = 64
RING_TILES = 3
RING_ROOMS = 2  # of main memory for tiles that come from files: one is read while the other is copied
ALL_FROM = 8  # places for each expert of a layer: with so many nearly every expert is asked for, and none is waited for
_ALIGNED = 16  # entries of `chosen`: every batch begins at a multiple


def ring_bytes(blob_bytes: int, experts: int) -> int:
    """Bytes of the card for a ring over layers of `experts` experts of at most so many bytes each."""
    return RING_TILES * min(TILE_EXPERTS, experts) * blob_bytes


class BlobStore(Protocol):
    """Where experts' bytes lie; `experts.store.ExpertStore` is one."""

    experts: int
    blob_bytes: NDArray[np.int64]  # [layers]
    resident: NDArray[np.int64]  # addresses of seats [layers, experts], 0: none
    in_ram: NDArray[np.int64]  # addresses in main memory [layers, experts], 0: not there

    def place_runs(self, layer: int, experts: Sequence[int]) -> list[torch.Tensor]:
        """The bytes of these experts in main memory in this order, uint8, as few pieces as they lie in."""
        ...


class ExpertFiles(Protocol):
    """Gives experts that lie in a model's files alone."""

    def read(self, layer: int, experts: Sequence[int], blobs: Sequence[torch.Tensor]) -> None:
        """Their bytes into these blobs, uint8; returns when they are there. Raises EngineError if they are not had."""
        ...


class SeatHolder(Protocol):
    """Who changes seats, and can be asked to leave them as they are; `experts.tiers.ExpertTiers` is one."""

    def hold_seats(self) -> None:
        """Until `release_seats` every expert stays where it is."""
        ...

    def release_seats(self) -> None:
        """Seats may change again, behind what was launched so far."""
        ...


@dataclass(frozen=True)
class _Tile:
    """Experts in one part of the ring, or on their way there."""

    part: int  # of the ring
    size: int  # bytes
    asked: float  # when, on the host's clock
    begun: Mark
    arrived: Mark


class StreamedExperts:
    """See `ExpertFeed`: experts without a seat come through a ring. One chunk at a time."""

    def __init__(
        self,
        store: BlobStore,
        seats: SeatHolder,
        streams: Streams,
        device: torch.device,
        files: ExpertFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """streams: with a side road of their own; files: for experts that have neither a seat nor a place.

        Takes the ring's memory, and for experts in files pinned memory on their way there. Raises torch's error if
        there is none.
        """
        self._store, self._seats, self._streams, self._device, self._files = store, seats, streams, device, files
        self._clock = clock
        layers, self._experts = store.resident.shape
        size = ring_bytes(int(store.blob_bytes.max()), self._experts) // RING_TILES
        self._ring = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(RING_TILES)]
        rooms = 0 if files is None else RING_ROOMS
        is_gpu = device.type == "cuda"
        self._rooms = [torch.empty(size, dtype=torch.uint8, pin_memory=is_gpu) for _ in range(rooms)]
        self._room_marks: list[Mark | None] = [None] * rooms  # behind what is copied out of each
        self._used: list[Mark | None] = [None] * RING_TILES  # behind what read each part last
        self._addresses = torch.zeros(layers, self._experts, dtype=torch.int64, device=device)
        batches = 1 + -(-self._experts // TILE_EXPERTS)
        room = self._experts + batches * _ALIGNED
        self._chosen = torch.zeros(layers, room, dtype=torch.int32, device=device)
        self._staging = Staging(layers * max(8 * self._experts, 4 * room), device, streams)
        self._residents: list[list[int]] = []
        self._planned: list[list[list[int]]] = []  # of each layer its tiles
        self._waiting: deque[tuple[int, list[int]]] = deque()  # tiles that are not sent yet
        self._sent: deque[_Tile] = deque()  # and not held yet
        self._held: _Tile | None = None
        self._on_way: deque[_Tile] = deque()  # not seen to have arrived
        self._seen = 0.0  # when a tile was seen to have arrived
        self._for_a_byte = 0.0  # seconds, of the tile that arrived last
        self._next_part = 0
        self.asks_for_routing = False
        self.sent_bytes = self.sent = self.at_hand = 0  # so far

    def begin(self, places: int, layer: int = 0) -> None:
        """See `ExpertFeed`. Of a long chunk all tiles of all layers are sent one after another, as the ring allows."""
        self._seats.hold_seats()
        self._residents = [np.flatnonzero(row).tolist() for row in self._store.resident]
        self.asks_for_routing = places < ALL_FROM * self._experts
        if self.asks_for_routing or layer == len(self._residents):
            return
        if layer:
            self._streams.hold_side(self._streams.mark_main())
        coming = range(layer, len(self._residents))
        missing = [np.flatnonzero(row == 0).tolist() for row in self._store.resident]
        self._planned = [_tiles(experts) for experts in missing]
        self._tell_addresses(coming)
        self._send(coming)

    def batches(self, layer: int, needed: Collection[int] | None) -> Sequence[ExpertBatch]:
        """See `ExpertFeed`."""
        if self.asks_for_routing:
            self._plan_layer(layer, set(range(self._experts) if needed is None else needed))
        self.at_hand += len(self._residents[layer])
        size, start, found = int(self._store.blob_bytes[layer]), 0, []
        for number, experts in enumerate((self._residents[layer], *self._planned[layer])):
            if experts:
                chosen = self._chosen[layer, start : start + len(experts)]
                found.append(ExpertBatch(self._addresses[layer], chosen, size * len(experts) if number else 0))
            start += _aligned(len(experts))
        return found

    def hold(self) -> None:
        """See `ExpertFeed`."""
        assert self._held is None, "the batch before is let go first"
        self._held = self._sent.popleft()
        self._streams.hold_main(self._held.arrived)

    def let_go(self) -> None:
        """See `ExpertFeed`. Raises EngineError for experts that cannot be read from files."""
        self._leave_part()
        self._fill_ring()

    def pause(self) -> None:
        """See `ExpertFeed`. What is on its way arrives in a part of the ring that nobody reads, and nobody waits."""
        assert self._held is None, "between two layers nothing is held"
        self._waiting.clear()
        self._sent.clear()
        self._seats.release_seats()

    def end(self) -> None:
        """See `ExpertFeed`. What is on its way arrives as behind `pause`."""
        self._waiting.clear()
        self._sent.clear()
        try:
            self._leave_part()  # whoever gave up has perhaps launched what reads it
            # Who waits for the main road waits for the copies, too, before any memory goes.
            self._streams.hold_main(self._streams.mark_side())
        finally:
            self._held = None
            self._seats.release_seats()

    @property
    def copying(self) -> Copying:
        """See `ExpertFeed`. Asks marks, and waits for none."""
        self._see_arrivals()
        arrivals, passing = [], 0.0
        for number, tile in enumerate(self._on_way):
            seconds = tile.size * self._for_a_byte
            if not number:  # it has been coming since the one before it was seen to be there
                seconds = max(0.0, seconds - (self._clock() - max(tile.asked, self._seen)))
            passing += seconds
            arrivals.append(passing)
        there = (0.0,) * max(0, len(self._sent) - len(arrivals))
        return Copying((*there, *arrivals)[len(there) + len(arrivals) - len(self._sent) :], self._for_a_byte)

    def _leave_part(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._used[held.part] = self._streams.mark_main()

    def _see_arrivals(self) -> None:
        while self._on_way and self._on_way[0].arrived.is_passed():
            tile = self._on_way.popleft()
            self._seen = self._clock()
            self._for_a_byte = tile.arrived.seconds_since(tile.begun) / tile.size

    def _plan_layer(self, layer: int, wanted: set[int]) -> None:
        """The one layer of a short chunk whose tiles are sent now."""
        residents = np.flatnonzero(self._store.resident[layer]).tolist()
        self._residents[layer] = [expert for expert in residents if expert in wanted]
        self._planned = [[] for _ in self._residents]
        self._planned[layer] = _tiles(sorted(wanted.difference(residents)))
        self._tell_addresses([layer])
        self._send([layer])

    def _send(self, layers: Sequence[int]) -> None:
        """All that is planned of these layers."""
        for layer in layers:
            self._waiting.extend((layer, tile) for tile in self._planned[layer])
        self._fill_ring()

    def _fill_ring(self) -> None:
        """Send tiles as long as a part of the ring is free, behind what still reads it."""
        self._see_arrivals()
        while self._waiting and len(self._sent) < RING_TILES:
            layer, experts = self._waiting.popleft()
            part, self._next_part = self._next_part, (self._next_part + 1) % RING_TILES
            used = self._used[part]
            if used is not None:
                self._streams.hold_side(used)
            offset, room = 0, self._read_from_files(layer, experts)
            asked, begun = self._clock(), self._streams.mark_side()
            for run in self._runs(layer, experts, room):
                self._streams.copy_beside(run, self._ring[part][offset : offset + run.numel()])
                offset += run.numel()
            self.sent_bytes += offset
            self.sent += len(experts)
            tile = _Tile(part, offset, asked, begun, self._streams.mark_side())
            if room:
                self._room_marks[-1] = tile.arrived
            self._sent.append(tile)
            self._on_way.append(tile)

    def _read_from_files(self, layer: int, experts: list[int]) -> dict[int, torch.Tensor]:
        """Those of a tile that lie nowhere else, by number, in the room that was sent from longest ago."""
        filed = [expert for expert in experts if not self._store.in_ram[layer, expert]]
        if not filed:
            return {}
        assert self._files is not None, "who keeps experts in files gives them"
        room, self._rooms = self._rooms[0], self._rooms[1:] + self._rooms[:1]
        mark, self._room_marks = self._room_marks[0], self._room_marks[1:] + self._room_marks[:1]
        if mark is not None:
            mark.wait()
        size = int(self._store.blob_bytes[layer])
        blobs = [room[start : start + size] for start in range(0, len(filed) * size, size)]
        self._files.read(layer, filed, blobs)
        return dict(zip(filed, blobs, strict=True))

    def _runs(self, layer: int, experts: list[int], room: dict[int, torch.Tensor]) -> Iterator[torch.Tensor]:
        """The bytes of these experts in main memory, in order."""
        if not room:
            yield from self._store.place_runs(layer, experts)
            return
        for expert in experts:
            yield from [room[expert]] if expert in room else self._store.place_runs(layer, [expert])

    def _tell_addresses(self, layers: Sequence[int] | range) -> None:
        """Where the experts of these layers will be, by the order in which tiles go round, onto the device."""
        part = self._next_part
        addresses = np.zeros((len(layers), self._experts), np.int64)
        chosen = np.zeros((len(layers), self._chosen.shape[1]), np.int32)
        for row, layer in enumerate(layers):
            addresses[row] = self._store.resident[layer]
            size, start = int(self._store.blob_bytes[layer]), 0
            for experts in (self._residents[layer], *self._planned[layer]):
                chosen[row, start : start + len(experts)] = experts
                start += _aligned(len(experts))
            for tile in self._planned[layer]:
                addresses[row, tile] = self._ring[part].data_ptr() + size * np.arange(len(tile))
                part = (part + 1) % RING_TILES
        first, stop = layers[0], layers[-1] + 1
        self._staging.put(torch.from_numpy(addresses), self._addresses[first:stop])
        self._staging.put(torch.from_numpy(chosen), self._chosen[first:stop])


def _tiles(experts: list[int]) -> list[list[int]]:
    return [experts[start : start + TILE_EXPERTS] for start in range(0, len(experts), TILE_EXPERTS)]


def _aligned(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED
