"""The launches of experts in tiers: planned, computed where the plan says, collected; without tiers nothing changes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from strata.engine.stage import Stage, StageSizes, Variant
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel, SparseMlp
from strata.models.device.held import DeviceExperts
from strata.models.device.mlps import readers_of
from strata.native import library
from strata.native.pool import Pool
from tests.engine.tiered_stages import CPU, Tiering, built, store_of, tiered

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

WITHOUT = ["experts: router, shared gate, up", "experts: route", "experts: rows"]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1) as made:
        yield made


def expert_steps(model: DeviceModel, variant: Variant = Variant.WINDOW, bucket: int = 2) -> dict[int | None, list[str]]:
    """By layer, of one bucket."""
    found: dict[int | None, list[str]] = {}
    for launch in Stage(model, StageSizes(1, 32), (bucket,)).launches(variant, bucket):
        if launch.step.startswith("experts"):
            found.setdefault(launch.layer, []).append(launch.step)
    return found


def sparse(model: DeviceModel) -> list[SparseMlp]:
    return [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMlp)]


def test_a_layer_in_tiers_is_planned_before_its_rows_and_collected_behind_them(pool: Pool) -> None:
    planned = [*WITHOUT[:2], "experts: plan", "experts: rows", "experts: collect"]
    with tiered("qwen4_exp", "code4", Tiering(0.5), pool) as (_, model):
        for variant in (Variant.WINDOW, Variant.FORWARD, Variant.READ):
            assert expert_steps(model, variant) == dict.fromkeys(range(len(model.layers)), planned)
        assert expert_steps(model, Variant.COMMIT) == {}


def test_one_row_is_routed_and_planned_in_one_launch_unless_the_stream_waits(pool: Pool) -> None:
    joined = [WITHOUT[0], "experts: route, plan", "experts: rows", "experts: collect"]
    waiting = [*WITHOUT[:2], "experts: plan", "experts: rows", "experts: wait", "experts: collect"]
    for waits_in_stream, wanted in ((False, joined), (True, waiting)):
        with tiered("qwen4_exp", "code4", Tiering(0.5, waits_in_stream=waits_in_stream), pool) as (_, model):
            for variant in (Variant.WINDOW, Variant.FORWARD, Variant.READ):
                assert expert_steps(model, variant, 1) == dict.fromkeys(range(len(model.layers)), wanted)


def test_a_stream_that_waits_does_so_in_front_of_the_collecting(pool: Pool) -> None:
    waiting = [*WITHOUT[:2], "experts: plan", "experts: rows", "experts: wait", "experts: collect"]
    with tiered("qwen4_exp", "code4", Tiering(0.5, waits_in_stream=True), pool) as (_, model):
        assert expert_steps(model) == dict.fromkeys(range(len(model.layers)), waiting)


def test_all_on_the_device_is_the_list_of_launches_that_it_was() -> None:
    model = built("qwen4_exp", "code4")[1]
    assert model.tiers is None
    assert expert_steps(model) == dict.fromkeys(range(len(model.layers)), WITHOUT)


def test_every_sparse_layer_looks_into_its_own_tables(pool: Pool) -> None:
    with tiered("qwen3_moe", "code8", Tiering(0.5), pool) as (model, described):
        tiers = described.tiers
        assert tiers is not None
        for index, mlp in enumerate(sparse(described)):
            assert mlp.tiers is not None
            assert mlp.tiers.layer == index
            assert mlp.tiers.tables.resident.data_ptr() == tiers.tables[index].resident.data_ptr()
        assert all(mlp.tiers is None for mlp in sparse(describe(model, CPU)))


def test_rows_are_kept_as_they_are_where_the_cpu_is_given_them(pool: Pool) -> None:
    for choice, is_plain in (("none", True), ("code8", False)):
        with tiered("qwen3_moe", choice, Tiering(0.0), pool) as (_, model):
            assert [readers_of(mlp).read_plain for mlp in sparse(model)] == [is_plain] * len(model.layers)


def test_experts_are_read_by_their_addresses_in_plain_torch_too() -> None:
    store = store_of("qwen3_moe", "code8", Tiering(0.5, is_exclusive=True))
    mlp = sparse(built("qwen3_moe", "code8")[1])[1]
    addresses = torch.from_numpy(store.in_ram[1] + store.resident[1])  # each expert is at one place
    elsewhere = ExpertBlobs(store.layout(1), torch.empty(0, dtype=torch.uint8), addresses)
    x, ids = torch.randn(3, 64), torch.tensor([[0, 5, 11, 15], [3, 2, 1, 0], [7, 8, 15, 14]])
    wanted = DeviceExperts(mlp.blobs).rows(x, ids)
    assert torch.equal(DeviceExperts(elsewhere).rows(x, ids), wanted)
    beside = replace(elsewhere, memory=mlp.blobs.memory)  # which holds none of them
    assert torch.equal(DeviceExperts(beside).rows(x, ids), wanted)
