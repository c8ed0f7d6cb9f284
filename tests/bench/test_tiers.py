"""Decoding over cache sizes with the real threads: where experts ran is counted, and no wrong result has a speed."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from strata.bench import conversations
from strata.bench.synthetic_model import expert_layers_of, make_model, synthetic_config
from strata.bench.tier_memory import TierMemory, model_in_tiers, model_on_device, seats_of
from strata.bench.tiers import TierBench, TierPlan
from strata.errors import EngineError
from strata.experts.cache import ExpertId
from strata.experts.store import ExpertStore
from strata.models.device.description import DeviceModel
from strata.models.device.synthetic import SyntheticForm
from strata.native import library
from strata.native.pool import Pool

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
CPU = torch.device("cpu")
LAYERS, RANKS, EXPERTS = 2, 4, 16
PLAN = TierPlan(
    caches=(0, 50, 100),
    slots=(1,),
    context=20,
    rounds=1,
    windows=1,
    is_popular=False,
    pcie_share=0.3,
    profile_windows=1,
)


@pytest.fixture(scope="module")
def made() -> tuple[DeviceModel, TierMemory]:
    config, form = synthetic_config(LAYERS, True), SyntheticForm()
    memory = TierMemory.take(*expert_layers_of(config, form), CPU, 1)
    return make_model(config, form, CPU, take_experts=memory.put), memory


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    for name in ("GATE_WINDOWS", "PROFILED_WINDOWS"):
        monkeypatch.setattr(conversations, name, 1)
    with Pool(2, keeps_cores=False) as pool:
        yield pool


def test_experts_in_main_memory_are_those_of_the_model_that_fits(made: tuple[DeviceModel, TierMemory]) -> None:
    _, memory = made
    whole = make_model(synthetic_config(LAYERS, True), SyntheticForm(), CPU)
    for index, layer in enumerate(whole.layers):
        assert torch.equal(memory.blobs(index).flatten(), layer.mlp.blobs.memory)  # type: ignore[union-attr]
    has_seat = np.zeros((LAYERS, EXPERTS), bool)
    has_seat[1, [2, 7]] = True
    store = memory.store(has_seat)
    assert (store.resident != 0).tolist() == has_seat.tolist()
    for expert in (2, 7):
        seat = store.seat(ExpertId(1, expert))
        assert seat is not None
        assert torch.equal(seat, memory.blobs(1)[expert])
        assert seat.data_ptr() != memory.blobs(1)[expert].data_ptr()


def test_every_layer_has_as_many_seats_and_the_hottest_have_them() -> None:
    heat = np.array([[5, 1, 9, 0], [0, 0, 3, 4]])
    assert seats_of(heat, 50).tolist() == [[True, False, True, False], [False, False, True, True]]
    assert not seats_of(heat, 0).any()
    assert seats_of(heat, 100).all()


def test_all_sizes_give_the_same_tokens_and_say_where_experts_ran(
    made: tuple[DeviceModel, TierMemory], pool: Pool
) -> None:
    told: list[tuple[str, int, int]] = []
    none, half, every, whole = TierBench(*made, pool, None, PLAN).measure(lambda *each: told.append(each))
    assert [(each.cache, each.is_planned) for each in (none, half, every, whole)] == [
        (0, True), (50, True), (100, True), (100, False),
    ]  # fmt: skip
    assert (none.counts.hits, none.counts.in_place, none.counts.on_cpu) == (0, LAYERS, 3 * LAYERS)  # a third of 4: 1
    assert none.counts.requests == LAYERS
    assert none.counts.cpu_gb_per_s is not None and none.counts.cpu_gb_per_s > 0
    assert half.counts.hits + half.counts.misses == RANKS * LAYERS
    for each in (every, whole):
        assert (each.counts.hits, each.counts.misses, each.counts.requests) == (RANKS * LAYERS, 0, 0)
    assert none.needed.misses == every.needed.hits == whole.needed.hits > 0
    assert none.needed.dense == whole.needed.dense
    assert {each.limit_ms for each in (none, half, every, whole)} == {None}
    assert told[-1] == ("decoding", 4, 4)


def test_the_hottest_have_the_seats_where_some_experts_are(made: tuple[DeviceModel, TierMemory], pool: Pool) -> None:
    bench = TierBench(*made, pool, None, replace(PLAN, caches=(25,), is_popular=True))
    heat = bench.profile()
    assert heat.sum() == LAYERS * RANKS * 8  # rows of the profile's window
    (speed,) = bench.measure()
    assert 0 <= speed.counts.hit_rate <= 1
    assert speed.counts.hits + speed.counts.misses == RANKS * LAYERS


def test_seats_that_follow_the_windows_change_no_token(made: tuple[DeviceModel, TierMemory], pool: Pool) -> None:
    bench = TierBench(*made, pool, None, replace(PLAN, caches=(0, 25), windows=6, with_swaps=True))
    none, quarter = bench.measure()
    assert none.counts.swaps == 0
    assert quarter.counts.swaps > 0


def test_one_sizes_seats_are_free_before_the_next_ones_are_taken(
    made: tuple[DeviceModel, TierMemory], pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[weakref.ref[ExpertStore]] = []
    store_of = TierMemory.store

    def noting(memory: TierMemory, has_seat: NDArray[np.bool_]) -> ExpertStore:
        assert not any(each() for each in stores)
        store = store_of(memory, has_seat)
        stores.append(weakref.ref(store))
        return store

    monkeypatch.setattr(TierMemory, "store", noting)
    gc.collect()
    gc.disable()
    try:
        TierBench(*made, pool, None, replace(PLAN, with_swaps=True)).measure()
    finally:
        gc.enable()
    assert len(stores) == len(PLAN.caches)


def test_no_speed_where_a_seat_holds_other_bytes(
    made: tuple[DeviceModel, TierMemory], pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_of = TierMemory.store

    def damaged(memory: TierMemory, has_seat: NDArray[np.bool_]) -> ExpertStore:
        store = store_of(memory, has_seat)
        for layer, expert in np.argwhere(has_seat).tolist():
            seat = store.seat(ExpertId(layer, expert))
            assert seat is not None
            seat.copy_(memory.blobs(layer)[expert - 1])
        return store

    monkeypatch.setattr(TierMemory, "store", damaged)
    with pytest.raises(EngineError, match=r"turn 1 of 1 conversations ends with tokens .* no speed is shown"):
        TierBench(*made, pool, None, replace(PLAN, windows=4)).measure()


def test_models_in_tiers_and_on_the_device_are_the_same_but_for_their_experts(
    made: tuple[DeviceModel, TierMemory], pool: Pool
) -> None:
    model, memory = made
    bench = TierBench(model, memory, pool, None, PLAN)
    with bench._tiers(50, np.zeros((LAYERS, EXPERTS), np.int64)) as loaded:
        tiered = model_in_tiers(model, loaded.tiers, memory)
    whole = model_on_device(model, memory.on_device())
    assert tiered.tiers is loaded.tiers and whole.tiers is None
    for index in range(LAYERS):
        ours, theirs = tiered.layers[index].mlp, whole.layers[index].mlp
        assert ours.tiers.layer == index and theirs.tiers is None  # type: ignore[union-attr]
        assert ours.router is theirs.router  # type: ignore[union-attr]
        assert theirs.blobs.seats == EXPERTS  # type: ignore[union-attr]
