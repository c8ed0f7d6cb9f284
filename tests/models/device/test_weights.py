"""Weights on a device: the published values, neighbours of one layout joined, every tensor counted once."""

from pathlib import Path

import pytest
import torch

from strata.models.device.held import DeviceExperts, DeviceMatrices, DeviceTable
from strata.models.device.weights import DeviceWeights
from strata.models.weights import TakenRows
from strata.quant.packed import PackedMatrix, view_matrix
from strata.weights.safetensors import open_model
from strata.weights.source import MemorySource
from tests.packed_buffers import to_buffer

CPU = torch.device("cpu")


def values(rows: int, columns: int, seed: int, is_bf16: bool = True) -> torch.Tensor:
    made = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return made.bfloat16().float() if is_bf16 else made


def decoded(matrices: object) -> torch.Tensor:
    assert isinstance(matrices, DeviceMatrices)
    return torch.cat([part.decode() for part in matrices.parts])


def test_neighbours_of_one_layout_become_one_matrix() -> None:
    tensors = {"a": values(32, 64, 1), "b": values(5, 64, 2), "c": values(7, 64, 3), "d": values(4, 64, 4, False)}
    weights = DeviceWeights(MemorySource(tensors), tensors.keys(), CPU)
    found = weights.matrix("a", "b", "c", "d")
    assert isinstance(found, DeviceMatrices)
    assert [part.layout.rows for part in found.parts] == [44, 4]
    assert found.shape == (48, 64)
    assert torch.equal(decoded(found), torch.cat(list(tensors.values())))


def test_a_matrix_that_is_asked_for_again_is_the_same() -> None:
    tensors = {"head": values(40, 32, 1)}
    weights = DeviceWeights(MemorySource(tensors), tensors.keys(), CPU)
    table = weights.table("head")
    assert isinstance(table, DeviceTable)
    assert weights.matrix("head").parts[0] is table.parts[0]  # type: ignore[union-attr]
    ids = torch.tensor([3, 39, 0])
    assert torch.equal(table(ids), tensors["head"][ids])


def test_rows_are_taken_in_an_order_of_their_own() -> None:
    tensors = {"a": values(24, 32, 1), "b": values(6, 32, 2)}
    weights = DeviceWeights(MemorySource(tensors), tensors.keys(), CPU)
    order = torch.arange(23, -1, -1)
    found = weights.matrix(TakenRows("a", order), "b")
    assert torch.equal(decoded(found), torch.cat((tensors["a"][order], tensors["b"])))


def test_matrices_on_their_way_to_a_card_may_share_memory(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(part: PackedMatrix, device: torch.device) -> PackedMatrix:
        assert device.type == "meta"
        return view_matrix(part.layout, to_buffer(part), part.layout.places(), part.post_scale)

    monkeypatch.setattr("strata.models.device.weights.moved", copied)
    source = open_model(tiny_model)
    names = [name for name in source.names() if len(source.shape(name)) == 2]
    weights = DeviceWeights(source, names, torch.device("meta"))
    pairs = [(name,) for name in names] + [(names[0], names[0]), (names[-1], names[-1])]
    found = [weights.matrix(*pair) for pair in pairs]
    for pair, matrices in zip(pairs, found, strict=True):
        assert torch.equal(decoded(matrices), torch.cat([source.tensor(name, torch.float32) for name in pair]))


def test_products_are_those_of_the_values() -> None:
    tensors = {"a": values(24, 32, 1), "b": values(6, 32, 2, False)}
    x = values(3, 32, 5, False)
    found = DeviceWeights(MemorySource(tensors), tensors.keys(), CPU).matrix("a", "b")
    assert isinstance(found, DeviceMatrices)
    assert torch.allclose(found.times(x), x @ torch.cat(list(tensors.values())).t(), atol=1e-5)


def test_experts_lie_one_after_another_and_compute_their_rows() -> None:
    gate_up = torch.stack([values(2 * 32, 64, seed) for seed in range(4)]) / 8
    down = torch.stack([values(64, 32, 10 + seed) for seed in range(4)]) / 8
    names = {"model.layers.0.mlp.experts.gate_up_proj": gate_up, "model.layers.0.mlp.experts.down_proj": down}
    experts = DeviceWeights(MemorySource(names), names.keys(), CPU).experts("model.layers.0.mlp.")
    assert isinstance(experts, DeviceExperts)
    assert experts.blobs.seats == 4
    x, ids = values(3, 64, 20, False), torch.tensor([[0, 3], [2, 1], [3, 2]])
    found = experts.rows(x, ids)
    for row in range(3):
        for rank in range(2):
            gate, up = (x[row] @ gate_up[ids[row, rank]].t()).chunk(2)
            wanted = (torch.nn.functional.silu(gate) * up) @ down[ids[row, rank]].t()
            assert torch.allclose(found[row, rank], wanted, atol=1e-5)


def test_progress_counts_every_tensor_once() -> None:
    prefix = "model.layers.0.mlp."
    tensors = {
        "a": values(32, 64, 1),
        "norm": torch.ones(64),
        f"{prefix}experts.gate_up_proj": torch.stack([values(64, 64, seed) for seed in range(4)]),
        f"{prefix}experts.down_proj": torch.stack([values(64, 32, seed) for seed in range(4)]),
    }
    seen: list[tuple[int, int]] = []
    source = MemorySource(tensors)
    weights = DeviceWeights(source, tensors.keys(), CPU, lambda _, done, total: seen.append((done, total)))
    weights.matrix("a")
    weights.table("a")
    weights.experts(prefix)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0
