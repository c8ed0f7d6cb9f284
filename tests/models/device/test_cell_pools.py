"""Keys and values in main memory: what they take, what a pool holds, and what is forgotten."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from strata.errors import EngineError, ModelError
from strata.experts.host_memory import HostMemory
from strata.kernels.cell_pages import NO_PLACE
from strata.models.device import cell_pools
from strata.models.device.cell_pools import CellPools, least_resident, pool_bytes, pool_places, stored_bytes
from strata.models.device.sizes import StateSizes
from strata.quant.cell_codes import CellKind

CPU = torch.device("cpu")
SIZES = StateSizes(attention_layers=3, kv_heads=2, head_dim=64, index_dim=16, ratio=4)


@pytest.mark.parametrize("kind", CellKind)
def test_tensors_take_what_is_planned(kind: CellKind) -> None:
    pools = CellPools.empty(SIZES, 2, 512, 128, kind, CPU)
    fixed = pools.words.nbytes + pools.totals.nbytes
    assert sum(part.nbytes for part in pools.tensors) - fixed == 2 * pool_bytes(SIZES, 512, 128, kind)
    assert sum(part.nbytes for part in pools.stored.tensors) == 2 * stored_bytes(SIZES, 512, kind)
    assert all(part.data_ptr() % 16 == 0 and part.is_contiguous() for part in pools.stored.tensors)


def test_a_pool_is_shared_by_all_slots_and_no_larger_than_they_are() -> None:
    assert (pool_places(SIZES, 3, 512, 100), pool_places(SIZES, 3, 512, 4096)) == (80, 3 * 128)
    pools = CellPools.empty(SIZES, 2, 512, 100, CellKind.BF16, CPU)
    assert (pools.places, pools.most_rows(13), pools.layer(1).ratio) == (56, 3, 4)
    assert CellPools.empty(SIZES, 2, 512, 512, CellKind.BF16, CPU).most_rows(13) is None
    assert least_resident(512, 4) == 2056


def test_what_a_copy_writes_over_is_forgotten_and_nothing_else() -> None:
    pools = CellPools.empty(SIZES, 2, 512, 100, CellKind.K8V4, CPU)
    for part in pools.stored.tensors:
        part.view(torch.uint8).random_(256)
    before = [part.clone() for part in pools.stored.tensors]
    for block, place in ((5, 0), (128 + 7, 1)):  # of slot 0, of slot 1
        pools.table.view(3, -1)[:, block], pools.owner[:, place], pools.used[:, place] = place, block, 9
    pools.copy(0, 1, 70)
    for part, old in zip(pools.stored.tensors, before, strict=True):
        assert torch.equal(part[:, 1, :128].view(torch.uint8), old[:, 0, :128].view(torch.uint8))
        assert torch.equal(part[:, 1, 128:].view(torch.uint8), old[:, 1, 128:].view(torch.uint8))
    assert bool((pools.table[:, 1] == NO_PLACE).all()) and bool((pools.table[:, 0, 5] == 0).all())
    assert pools.owner[:, :2].tolist() == [[5, NO_PLACE]] * 3 and pools.used[:, :2].tolist() == [[9, 0]] * 3


def test_a_launch_keeps_main_memory_pinned_behind_the_state_that_took_it() -> None:
    pools = CellPools.empty(SIZES, 1, 512, 100, CellKind.BF16, CPU)
    memory, pages = weakref.ref(pools.stored.memory), pools.layer(2)
    del pools
    gc.collect()
    assert memory() is not None and pages.places == 32
    del pages
    gc.collect()
    assert memory() is None


def test_a_pool_that_cannot_be_counted_in_is_refused_before_memory_is_taken() -> None:
    wide = replace(SIZES, head_dim=256)
    with pytest.raises(EngineError, match=r"kv_resident: 262,144 cells of each of 16 .* up to 262,140 work"):
        CellPools.empty(wide, 16, 262_144, 262_144, CellKind.BF16, CPU)


def test_models_without_an_indexer_are_refused() -> None:
    with pytest.raises(ValueError, match="only attention with an indexer reads few cells"):
        CellPools.empty(replace(SIZES, index_dim=0, ratio=1), 1, 512, 100, CellKind.BF16, CPU)


def test_memory_that_is_not_there_is_told_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> HostMemory:
        raise ModelError("no")

    monkeypatch.setattr(cell_pools, "take_host_memory", refuse)
    with pytest.raises(EngineError, match=r"does not give the 0\.0 GiB of keys and values .*: a smaller context"):
        CellPools.empty(SIZES, 1, 512, 100, CellKind.BF16, CPU)


def test_memory_that_cannot_be_pinned_is_told_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cell_pools.Pinning, "cuda", lambda: cell_pools.Pinning(lambda *_: "CUDA says 2", lambda _: None)
    )
    with pytest.raises(EngineError, match=r"does not pin the 0\.0 GiB of keys and values .*`ulimit -l unlimited`"):
        cell_pools.StoredHeads.take(SIZES, 1, 512, CellKind.BF16, torch.device("cuda"))
