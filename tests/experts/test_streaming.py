"""Experts on their way through a ring: who lies where when a batch is given, and in which order bytes may move."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from strata.experts.feed import Copying, ResidentExperts
from strata.experts.streaming import RING_TILES, TILE_EXPERTS, StreamedExperts, ring_bytes
from strata.experts.streams import Mark, PlainStreams
from strata.kernels.expert_rows.reference_window import _at_address

CPU = torch.device("cpu")
LAYERS, EXPERTS, BLOB = 3, 200, 256


@dataclass
class Store:
    """See `BlobStore`: expert e of layer l is BLOB bytes of one value."""

    seated: Sequence[int] = ()
    experts: int = EXPERTS
    blob_bytes: np.ndarray = field(default_factory=lambda: np.full(LAYERS, BLOB, np.int64))

    def __post_init__(self) -> None:
        values = torch.arange(LAYERS * EXPERTS).view(LAYERS, EXPERTS, 1) % 251
        self.ram = values.to(torch.uint8).expand(LAYERS, EXPERTS, BLOB).contiguous()
        self.seats = self.ram.clone()
        self.resident = np.zeros((LAYERS, EXPERTS), np.int64)
        for expert in self.seated:
            for layer in range(LAYERS):
                self.resident[layer, expert] = self.seats[layer, expert].data_ptr()
        places = [[self.ram[layer, expert].data_ptr() for expert in range(EXPERTS)] for layer in range(LAYERS)]
        self.in_ram = np.array(places)

    def place_runs(self, layer: int, experts: Sequence[int]) -> list[torch.Tensor]:
        return [self.ram[layer, expert] for expert in experts]


@dataclass
class Seats:
    """See `SeatHolder`."""

    is_held: bool = False

    def hold_seats(self) -> None:
        self.is_held = True

    def release_seats(self) -> None:
        self.is_held = False


class Roads(PlainStreams):
    """See `Streams`: copies wait for a mark of the main road where they were told to, and then say so."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.refuse_copy: int | None = None  # which copy from now on is refused

    def mark_main(self) -> Mark:
        self.told.append("used")
        return super().mark_main()

    def hold_side(self, mark: Mark) -> None:
        self.told.append("hold copies")

    def hold_main(self, mark: Mark) -> None:
        self.told.append("hold main")

    def copy_beside(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if self.refuse_copy is not None:
            self.refuse_copy -= 1
            if self.refuse_copy < 0:
                self.refuse_copy = None
                raise RuntimeError("the copy is refused")
        self.told.append("copy")
        super().copy_beside(source, target)


def found(feed: StreamedExperts, layer: int, needed: Sequence[int] | None = None) -> list[int]:
    """Every expert of a layer in the order of batches; each one's bytes are the right ones while its batch is there."""
    experts: list[int] = []
    for batch in feed.batches(layer, needed):
        if batch.sent_bytes:
            feed.hold()
        for expert in batch.chosen.tolist():
            blob = _at_address(int(batch.addresses[expert]), BLOB, CPU)
            assert (blob == (layer * EXPERTS + expert) % 251).all()
        experts += batch.chosen.tolist()
        assert batch.chosen.data_ptr() % 16 == 0
        assert batch.sent_bytes in (0, BLOB * len(batch.chosen))
        if batch.sent_bytes:
            feed.let_go()
    return experts


@pytest.mark.parametrize("seated", [(), (0, 3, 199), tuple(range(EXPERTS)), tuple(range(1, EXPERTS))])
def test_every_expert_comes_once_with_its_bytes_residents_first(seated: tuple[int, ...]) -> None:
    store, seats = Store(seated), Seats()
    feed = StreamedExperts(store, seats, PlainStreams(), CPU)
    others = [expert for expert in range(EXPERTS) if expert not in seated]
    for _ in range(2):
        feed.begin(places=100 * EXPERTS)
        assert not feed.asks_for_routing and seats.is_held
        for layer in range(LAYERS):
            assert found(feed, layer) == [*seated, *others]
        feed.end()
        assert not seats.is_held
    assert feed.sent_bytes == 2 * LAYERS * len(others) * BLOB


def test_of_a_short_chunk_only_what_is_needed_is_sent() -> None:
    feed = StreamedExperts(Store((5, 7)), Seats(), PlainStreams(), CPU)
    feed.begin(places=8)
    assert feed.asks_for_routing
    assert found(feed, 0, [9, 5, 150]) == [5, 9, 150]
    assert found(feed, 1, []) == []
    assert found(feed, 2, range(100)) == [5, 7, *(expert for expert in range(100) if expert not in (5, 7))]
    feed.end()
    assert feed.sent_bytes == (2 + 98) * BLOB


def test_a_part_of_the_ring_is_filled_again_once_it_was_used() -> None:
    roads = Roads()
    feed = StreamedExperts(Store(), Seats(), roads, CPU)
    tiles = -(-EXPERTS // TILE_EXPERTS)
    feed.begin(places=100 * EXPERTS)
    assert roads.told.count("copy") == RING_TILES * TILE_EXPERTS  # ahead of the first layer
    assert "hold copies" not in roads.told
    roads.told.clear()
    assert len(feed.batches(0, None)) == tiles == 4
    assert roads.told == []
    feed.hold()
    feed.let_go()
    assert roads.told[:3] == ["hold main", "used", "hold copies"]  # a fourth tile, behind what reads the first
    assert roads.told.count("copy") == EXPERTS - RING_TILES * TILE_EXPERTS == EXPERTS % TILE_EXPERTS


def test_the_next_chunk_s_copies_begin_behind_what_reads_the_last_one_s() -> None:
    roads = Roads()
    feed = StreamedExperts(Store(), Seats(), roads, CPU)
    for _ in range(2):
        feed.begin(places=100 * EXPERTS)
        for layer in range(LAYERS):
            found(feed, layer)
        feed.end()
        roads.told.clear()
    feed.begin(places=100 * EXPERTS)
    assert roads.told.count("hold copies") == RING_TILES
    assert roads.told.count("copy") == RING_TILES * TILE_EXPERTS
    assert "hold main" not in roads.told  # nobody waits
    assert roads.told.count("used") == 2  # behind the tables that tell addresses


@pytest.mark.parametrize("calls", range(1, 40, 3))
def test_a_chunk_that_is_given_up_anywhere_leaves_nothing_for_the_next_one(calls: int) -> None:
    """Also by an error out of a copy: each of the first calls is refused once."""
    roads, seats = Roads(), Seats()
    feed = StreamedExperts(Store((3,)), seats, roads, CPU)
    roads.refuse_copy = calls * TILE_EXPERTS // 4
    with pytest.raises(RuntimeError, match="the copy is refused"):
        feed.begin(places=100 * EXPERTS)
        for layer in range(LAYERS):
            found(feed, layer)
    feed.end()
    assert roads.told[-1] == "hold main" and not seats.is_held  # who waits for the main road waits for copies too
    assert feed.copying == Copying()
    feed.begin(places=100 * EXPERTS)
    feed.batches(0, None)
    feed.hold()
    feed.end()  # between waiting for a tile and letting it go
    assert roads.told[-2:] == ["used", "hold main"]
    feed.begin(places=100 * EXPERTS)
    for layer in range(LAYERS):
        assert sorted(found(feed, layer)) == list(range(EXPERTS))
    feed.end()


@pytest.mark.parametrize("layer", range(LAYERS + 1))
def test_a_chunk_that_is_set_aside_gets_the_rest_when_it_goes_on(layer: int) -> None:
    """Seats may be others then; in between another chunk gets all of its experts, and nobody waits for copies."""
    roads, seats, store = Roads(), Seats(), Store((3,))
    feed = StreamedExperts(store, seats, roads, CPU)
    feed.begin(places=100 * EXPERTS)
    for each in range(layer):
        found(feed, each)
    roads.told.clear()
    feed.pause()
    assert not seats.is_held and roads.told == []
    feed.begin(places=8)
    assert [found(feed, each, [3, 60]) for each in range(LAYERS)] == [[3, 60]] * LAYERS
    feed.end()
    store.resident[:, 3], store.resident[:, 7] = 0, [row[7].data_ptr() for row in store.seats]
    sent = feed.sent
    roads.told.clear()
    feed.begin(100 * EXPERTS, layer)
    assert (roads.told[:2] == ["used", "hold copies"]) is (0 < layer < LAYERS)  # its streams come first
    for each in range(layer, LAYERS):
        assert found(feed, each) == [7, *(expert for expert in range(EXPERTS) if expert != 7)]
    assert feed.sent - sent == (LAYERS - layer) * (EXPERTS - 1)
    feed.end()
    assert not seats.is_held


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class _Arriving:
    """See `Mark`: passed at its time."""

    def __init__(self, clock: _Clock, at: float) -> None:
        self._clock, self.at = clock, at

    def is_passed(self) -> bool:
        return self._clock.now >= self.at

    def wait(self) -> None:
        raise AssertionError("nobody waits")

    def seconds_since(self, earlier: "_Arriving") -> float:
        return self.at - earlier.at


class SlowRoads(PlainStreams):
    """Copies take a second an expert."""

    def __init__(self, clock: _Clock) -> None:
        self._clock, self._end = clock, 0.0

    def mark_side(self) -> Mark:
        return _Arriving(self._clock, self._end)

    def hold_main(self, mark: Mark) -> None:
        pass

    def copy_beside(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._end += 1.0


def test_it_tells_how_long_copies_will_take() -> None:
    clock = _Clock()
    feed = StreamedExperts(Store(), Seats(), SlowRoads(clock), CPU, clock=clock)
    feed.begin(places=100 * EXPERTS)
    assert feed.copying == Copying((0, 0, 0))  # nothing is known yet
    clock.now = 70.0  # a tile of 64 has arrived, unseen; six seconds of the next one are over
    assert feed.copying == Copying((0, TILE_EXPERTS, 2 * TILE_EXPERTS), 1 / BLOB)
    clock.now = 80.0
    assert feed.copying.arrivals == (0, TILE_EXPERTS - 10, 2 * TILE_EXPERTS - 10)
    feed.hold()
    assert feed.copying.arrivals == (TILE_EXPERTS - 10, 2 * TILE_EXPERTS - 10)
    feed.let_go()
    last = 2 * TILE_EXPERTS + EXPERTS % TILE_EXPERTS - 10
    assert feed.copying.arrivals == (TILE_EXPERTS - 10, 2 * TILE_EXPERTS - 10, last)
    feed.hold()
    assert feed.copying.arrivals == (2 * TILE_EXPERTS - 10, last)
    feed.let_go()
    clock.now = 1000.0
    assert feed.copying.arrivals == (0, 0, 0)
    feed.end()


@dataclass
class Files:
    """See `ExpertFiles`: what a store has lost."""

    store: Store
    read_so_far: list[tuple[int, int]] = field(default_factory=list)

    def read(self, layer: int, experts: Sequence[int], blobs: Sequence[torch.Tensor]) -> None:
        for expert, blob in zip(experts, blobs, strict=True):
            blob.copy_(self.store.ram[layer, expert])
            self.read_so_far.append((layer, expert))


@pytest.mark.parametrize("places", [100 * EXPERTS, 8])
def test_experts_that_lie_in_files_alone_are_read_on_their_way(places: int) -> None:
    store = Store((5, 7))
    filed = [expert for expert in range(EXPERTS) if expert % 3 == 0]
    store.in_ram[:, filed] = 0
    files = Files(store)
    feed = StreamedExperts(store, Seats(), PlainStreams(), CPU, files)
    feed.begin(places)
    for layer in range(LAYERS):
        assert sorted(found(feed, layer, range(EXPERTS))) == list(range(EXPERTS))
    feed.end()
    assert files.read_so_far == [(layer, expert) for layer in range(LAYERS) for expert in filed]


def test_experts_that_are_all_there_are_one_batch() -> None:
    addresses = [torch.arange(4) + 100 * layer for layer in range(2)]
    feed = ResidentExperts(addresses)
    feed.begin(1)
    (batch,) = feed.batches(1, None)
    assert torch.equal(batch.addresses, addresses[1]) and batch.chosen.tolist() == [0, 1, 2, 3]
    feed.end()
    assert ring_bytes(1000, 512) == 3 * 64 * 1000
    assert ring_bytes(1000, 8) == 3 * 8 * 1000
