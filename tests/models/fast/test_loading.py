"""Packed weights hold every matrix once and never as a tensor of floats."""

from pathlib import Path
from typing import Any

import pytest
import torch

from strata.models.families import family_of
from strata.models.fast.held import PackedMatrices, PackedTable
from strata.models.fast.loading import PackedWeights, open_packed_weights
from strata.models.weights import TakenRows
from strata.native.pool import Pool
from strata.weights.opening import ModelSource, open_model
from strata.weights.source import MemorySource
from tests.models.fast.twins import needs_library
from tests.weights import gguf_models

pytestmark = needs_library


def opened(source: Any, on_progress: Any = None) -> PackedWeights:
    return open_packed_weights(source, source.names(), Pool(1), on_progress)


def test_a_matrix_that_is_asked_for_twice_is_packed_once() -> None:
    weights = opened(MemorySource({"a": torch.randn(4, 32), "b": torch.randn(2, 32)}))
    head, table, joined = weights.matrix("a"), weights.table("a"), weights.matrix("a", "b")
    assert isinstance(head, PackedMatrices) and isinstance(table, PackedTable) and isinstance(joined, PackedMatrices)
    assert head.native.parts[0] == table.matrices.native.parts[0] == joined.native.parts[0]
    assert joined.shape == (6, 32)


def test_rows_that_are_taken_stand_in_the_wanted_order() -> None:
    values = torch.randn(6, 8)
    weights = opened(MemorySource({"a": values, "b": values + 1}))
    taken = weights.matrix(TakenRows("a", torch.tensor([5, 0])), TakenRows("b", torch.tensor([2])))
    x = torch.randn(3, 8)
    expected = x @ torch.cat((values[[5, 0]], values[[2]] + 1)).t()
    assert (taken.times(x) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("family", gguf_models.FAMILIES)
@pytest.mark.parametrize("kind", ["bf16", "code4", "Q4_0"])
def test_no_matrix_becomes_a_tensor(family: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(family, kind)
    read: list[str] = []
    real = type(source).tensor

    def watch(self: ModelSource, name: str, dtype: torch.dtype) -> torch.Tensor:
        read.append(name)
        return real(self, name, dtype)

    monkeypatch.setattr(type(source), "tensor", watch)
    found = family_of(source.config)
    found.build(found.parse_config(source.config), opened(source))
    assert read
    assert [name for name in read if len(source.shape(name)) == 2 and min(source.shape(name)) > 1] == []


def open_source(family: str, kind: str) -> ModelSource:
    if kind.startswith("Q"):
        return open_model(gguf_models.gguf(family, kind))
    return open_model(Path(gguf_models.directory(family)), "none" if kind == "bf16" else kind)


def test_progress_rises_to_the_end_of_each_stage() -> None:
    source = open_model(gguf_models.gguf("qwen3_moe", "Q4_0"))
    seen: dict[str, list[tuple[int, int]]] = {}
    found = family_of(source.config)
    weights = opened(source, lambda stage, done, total: seen.setdefault(stage, []).append((done, total)))
    found.build(found.parse_config(source.config), weights)
    assert list(seen) == ["packing the experts", "loading the model"]
    for steps in seen.values():
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert steps[-1][0] == steps[-1][1]
