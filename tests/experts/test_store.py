"""The store: every expert where the tables say, its bytes right, nothing lost when seats change hands."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from strata.errors import WeightFileError
from strata.experts import store_plan
from strata.experts.arena import load_arena
from strata.experts.blob import ExpertMatrices, layout_of
from strata.experts.cache import ExpertId
from strata.experts.host_memory import Pinning
from strata.experts.packing import PackingThreads
from strata.experts.store import ExpertStore
from strata.experts.store_filling import fill_layer
from strata.experts.store_plan import StoreLayer, StorePlan, place_pieces
from strata.experts.uploading import Staging
from strata.hardware import MemoryFacts
from strata.quant.layout import BlobLayout
from tests.experts.experts import random_expert

EXPERTS = 6
KINDS = {"model.layers.0.mlp.": "Q4_0", "model.layers.1.mlp.": "Q8_0", "model.layers.3.mlp.": "Q4_0"}  # two sizes
NAMES = tuple(KINDS)
CPU = torch.device("cpu")
PINNING = Pinning(lambda *_: None, lambda _: None)


class RandomExperts:
    """An ExpertSource of random experts."""

    def layers(self) -> tuple[str, ...]:
        return NAMES

    def count(self, layer: str) -> int:
        return EXPERTS

    def layout(self, layer: str) -> BlobLayout:
        return layout_of(self.matrices(layer, 0))

    def matrices(self, layer: str, expert: int) -> ExpertMatrices:
        return random_expert(KINDS[layer], "Q8_0", seed=10 * expert + 100 * NAMES.index(layer))

    def published(self, layer: str) -> None:
        """They are made."""

    def read_ahead(self, layer: str, expert: int) -> None:
        """Nothing is read."""

    def forget(self, layer: str, expert: int) -> None:
        """Nothing is mapped."""


SOURCE = RandomExperts()
WANTED = load_arena(SOURCE, MemoryFacts(1 << 40, 1 << 40))


def plan(has_seat: np.ndarray, is_exclusive: bool) -> StorePlan:
    return StorePlan(tuple(StoreLayer(name, SOURCE.layout(name)) for name in NAMES), has_seat, is_exclusive)


def some_seats(seed: int = 0, share: float = 0.5) -> np.ndarray:
    return np.random.default_rng(seed).random((len(NAMES), EXPERTS)) < share


def filled(
    has_seat: np.ndarray, is_exclusive: bool, pinning: Pinning | None = None
) -> tuple[ExpertStore, list[tuple[int, int]]]:
    store, told = ExpertStore.create(plan(has_seat, is_exclusive), CPU, 2, pinning), []
    with PackingThreads(2) as threads:
        staging = Staging(CPU)
        for layer in range(len(NAMES)):
            fill_layer(store, layer, SOURCE, threads, staging, lambda _, *step: told.append(step))
    return store, told


def everyone() -> Iterator[ExpertId]:
    return (ExpertId(layer, expert) for layer in range(len(NAMES)) for expert in range(EXPERTS))


def require_whole(store: ExpertStore) -> None:
    """Every expert is somewhere, with its bytes, and no room is anybody else's."""
    taken: list[int] = []
    for expert in everyone():
        wanted = WANTED.blob_bytes(NAMES[expert.layer], expert.expert)
        found = [view for view in (store.seat(expert), store.place(expert)) if view is not None]
        assert found
        taken += [view.data_ptr() for view in found]
        assert all(torch.equal(view, wanted) and view.data_ptr() % 256 == 0 for view in found)
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("pinning", [None, PINNING])
def test_every_expert_lies_where_the_tables_say(is_exclusive: bool, share: float, pinning: Pinning | None) -> None:
    has_seat = some_seats(share=share)
    store, told = filled(has_seat, is_exclusive, pinning)
    require_whole(store)
    assert ((store.resident != 0) == has_seat).all()
    assert ((store.in_ram != 0) == (~has_seat if is_exclusive else np.ones_like(has_seat))).all()
    assert bool((store.resident != 0).all()) == (share == 1.0)
    assert store.is_pinned == (pinning is not None)
    assert told[-1][0] == told[-1][1]
    assert (store.layers, store.experts, store.index(NAMES[2])) == (NAMES, EXPERTS, 2)


def test_main_memory_holds_all_or_only_who_has_no_seat() -> None:
    has_seat = some_seats()
    sizes = [SOURCE.layout(name).total_bytes for name in NAMES]
    whole = EXPERTS * sum(sizes)
    on_card = sum(size * int(seats.sum()) for size, seats in zip(sizes, has_seat, strict=True))
    both = ExpertStore.create(plan(has_seat, False), CPU, 1)
    assert (both.ram_bytes, both.seat_bytes) == (whole, on_card)
    assert both.held_ratio == pytest.approx((whole + on_card) / whole)
    apart = ExpertStore.create(plan(has_seat, True), CPU, 1)
    spare = sum(set(sizes))  # one place of either size
    assert (apart.ram_bytes, apart.seat_bytes) == (whole - on_card + spare, on_card)


def test_an_exclusive_store_of_the_published_shape_holds_at_most_a_twentieth_twice() -> None:
    layers = tuple(StoreLayer(f"model.layers.{layer}.mlp.", SOURCE.layout(NAMES[0])) for layer in range(48))
    for share in (0.01, 0.3, 0.99):
        has_seat = np.random.default_rng(1).random((48, 512)) < share
        found = StorePlan(layers, has_seat, is_exclusive=True)
        (seats,), (places,) = found.seats().values(), found.places().values()
        assert 48 * 512 < seats + places <= 1.05 * 48 * 512
        assert sum(count for _, count in place_pieces(found)) == places
        assert max(count for _, count in place_pieces(found)) <= 512


def test_a_seat_that_changes_hands_is_the_arrivals() -> None:
    store, _ = filled(some_seats(), is_exclusive=False)
    victim = next(each for each in everyone() if store.seat(each) is not None and each.layer == 0)
    arrival = next(each for each in everyone() if store.seat(each) is None and each.layer == 2)
    seat = store.take_seat(victim)
    assert store.seat(victim) is None
    place = store.place(arrival)
    assert place is not None
    seat.copy_(place)
    store.give_seat(arrival, seat)
    require_whole(store)
    assert store.resident[arrival] == seat.data_ptr()
    with pytest.raises(ValueError, match="cannot give up a seat"):
        store.take_seat(victim)


def test_exclusive_experts_trade_places_again_and_again() -> None:
    store, _ = filled(some_seats(3), is_exclusive=True)
    random = np.random.default_rng(0)
    size = store.blob_bytes[0]
    layers = [layer for layer in range(len(NAMES)) if store.blob_bytes[layer] == size]
    for _ in range(50):
        mine = [each for each in everyone() if each.layer in layers]
        victim = mine[random.choice([i for i, each in enumerate(mine) if store.seat(each) is not None])]
        arrival = mine[random.choice([i for i, each in enumerate(mine) if store.seat(each) is None])]
        place = store.take_place(victim.layer)
        assert place is not None
        leaving, coming = store.seat(victim), store.place(arrival)
        assert leaving is not None and coming is not None
        place.copy_(leaving)
        store.give_place(victim, place)
        seat = store.take_seat(victim)
        seat.copy_(coming)
        store.give_seat(arrival, seat)
        store.drop_place(arrival)
        require_whole(store)
    assert ((store.resident != 0) != (store.in_ram != 0)).all()


def test_what_would_lose_an_expert_or_mix_two_up_is_refused() -> None:
    store, _ = filled(some_seats(3), is_exclusive=True)
    seated = next(each for each in everyone() if store.seat(each) is not None and each.layer == 0)
    waiting = next(each for each in everyone() if store.seat(each) is None and each.layer == 1)
    with pytest.raises(ValueError, match="cannot give up a seat: it has none, or no place"):
        store.take_seat(seated)
    with pytest.raises(ValueError, match="cannot give up a place"):
        store.drop_place(waiting)
    place = store.take_place(0)
    assert place is not None
    assert store.take_place(2) is None  # of the same size, and there was one
    with pytest.raises(ValueError, match="has a place, or needs one of"):
        store.give_place(waiting, place)
    store.give_place(seated, place)
    seat = store.take_seat(seated)
    with pytest.raises(ValueError, match="has a seat, or needs one of"):
        store.give_seat(waiting, seat)
    with pytest.raises(ValueError, match="no blob begins at"):
        store.give_seat(seated, seat[1:])
    with pytest.raises(ValueError, match="2 layers, and seats of shape"):
        StorePlan(plan(some_seats(), False).layers[:2], some_seats())


def test_a_broken_expert_ends_the_filling(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> ExpertMatrices:
        raise WeightFileError("this expert is broken")

    for is_exclusive in (False, True):
        store = ExpertStore.create(plan(some_seats(), is_exclusive), CPU, 1)
        with monkeypatch.context() as patched, PackingThreads(1) as threads:
            patched.setattr(RandomExperts, "matrices", broken)
            patched.setattr(RandomExperts, "layout", lambda _, name: WANTED.layers[name].layout)
            with pytest.raises(WeightFileError, match="this expert is broken"):
                fill_layer(store, 1, SOURCE, threads, Staging(CPU))


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_seats_that_are_given_up_leave_every_expert_in_main_memory(
    monkeypatch: pytest.MonkeyPatch, is_exclusive: bool
) -> None:
    monkeypatch.setattr(store_plan, "SEAT_PIECE_BYTES", 2 * SOURCE.layout(NAMES[0]).total_bytes)
    store, _ = filled(some_seats(share=1.0), is_exclusive, PINNING)
    before, whole = store.seat_bytes, store.ram_bytes
    asked = before // 3
    given = store.give_up_seats(asked)
    assert asked <= given < asked + 2 * max(store.blob_bytes)
    assert store.seat_bytes == before - given
    assert store.ram_bytes == whole + (given if is_exclusive else 0)
    require_whole(store)
    left = (store.resident != 0).sum(axis=1)
    assert left.min() > 0, "no layer loses all of its seats before the others"
    assert store.give_up_seats(1 << 40) == before - given
    assert (store.seat_bytes, bool(store.resident.any()), store.is_pinned) == (0, False, True)
    assert store.give_up_seats(1) == 0
    require_whole(store)


def test_the_coldest_experts_lose_their_seats_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_plan, "SEAT_PIECE_BYTES", 1)
    heat = np.random.default_rng(5).random((len(NAMES), EXPERTS))
    whole = plan(some_seats(share=1.0), False)
    store = ExpertStore.create(StorePlan(whole.layers, whole.has_seat, False, heat), CPU, 1)
    for size in np.unique(store.blob_bytes):
        store.give_up_seats(4 * int(size))
    for size in np.unique(store.blob_bytes):
        of_size = np.broadcast_to((store.blob_bytes == size)[:, None], heat.shape)
        has_seat = store.resident != 0
        assert 0 < (has_seat & of_size).sum() < of_size.sum()
        assert heat[has_seat & of_size].min() > heat[~has_seat & of_size].max()
