"""The arena: every expert where it was planned, no second copy, and a sentence instead of too little memory."""

import numpy as np
import pytest
import torch

from strata.errors import ModelError, WeightFileError
from strata.experts.arena import load_arena, plan_arena
from strata.experts.blob import ExpertMatrices, layout_of
from strata.hardware import MemoryFacts
from strata.quant import formats
from strata.quant.layout import BlobLayout
from tests.experts.experts import random_expert

KINDS = {"model.layers.0.mlp.": ("Q4_0", "Q8_0", 5), "model.layers.1.mlp.": ("Q2_0", "Q5_1", 3)}
PLENTY = MemoryFacts(total=1 << 40, available=1 << 40)


class RandomExperts:
    """An ExpertSource of random experts that remembers what it was asked."""

    def __init__(self) -> None:
        self.ahead: list[tuple[str, int]] = []
        self.forgotten: list[tuple[str, int]] = []

    def layers(self) -> tuple[str, ...]:
        return tuple(KINDS)

    def count(self, layer: str) -> int:
        return KINDS[layer][2]

    def layout(self, layer: str) -> BlobLayout:
        return layout_of(self.matrices(layer, 0))

    def matrices(self, layer: str, expert: int) -> ExpertMatrices:
        inner, outer, _ = KINDS[layer]
        return random_expert(inner, outer, seed=100 * expert + len(inner))

    def published(self, layer: str) -> None:
        """They are made."""

    def read_ahead(self, layer: str, expert: int) -> None:
        self.ahead.append((layer, expert))

    def forget(self, layer: str, expert: int) -> None:
        self.forgotten.append((layer, expert))


def test_every_expert_is_where_it_was_planned() -> None:
    source = RandomExperts()
    steps: list[tuple[int, int]] = []
    arena = load_arena(source, PLENTY, lambda _, done, total: steps.append((done, total)))
    everyone = [(layer, expert) for layer in KINDS for expert in range(KINDS[layer][2])]
    for layer, expert in everyone:
        assert arena.address(layer, expert) % 256 == 0
        for found, wanted in zip(arena.expert(layer, expert).matrices, source.matrices(layer, expert), strict=True):
            assert torch.equal(found.decode(), wanted.decode())
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (arena.buffer.numel(), arena.buffer.numel())
    assert sorted(source.forgotten) == everyone
    asked = [each for each in source.ahead if each in everyone]
    assert sorted(asked) == everyone, "every expert was read ahead, none twice"
    with pytest.raises(IndexError, match="no 5"):
        arena.expert("model.layers.0.mlp.", 5)


def test_too_little_memory_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = RandomExperts()
    needed = sum(layer.total_bytes for layer in plan_arena(source))
    monkeypatch.setattr(source, "read_ahead", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ModelError, match=r"8 experts take .* this PC leaves .* at most \d+\.\d bits a weight"):
        load_arena(source, MemoryFacts(total=1 << 40, available=needed - 1))
    with pytest.raises(ModelError, match="a memory limit of this process leaves"):
        load_arena(source, MemoryFacts(total=1 << 40, available=1 << 39, limit=needed, limit_available=needed // 2))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_one_expert_ends_the_loading(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    source = RandomExperts()
    kept = source.matrices

    def matrices(layer: str, expert: int) -> ExpertMatrices:
        if expert == 2:
            raise WeightFileError("expert 2 is broken")
        return kept(layer, expert)

    monkeypatch.setattr(source, "matrices", matrices)
    with pytest.raises(WeightFileError, match="expert 2 is broken"):
        load_arena(source, PLENTY, threads=threads)
    assert not any("layers.1" in layer for layer, _ in source.forgotten)


def test_an_expert_unlike_the_first_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = RandomExperts()
    mxfp4 = formats.by_name("MXFP4")
    blocks = np.full((16, 17), 0x5A, np.uint8)
    blocks[:, 0] = np.where(np.arange(16) % 2, 0, 253)
    odd = mxfp4.to_packed(blocks, 16, 32)
    down = formats.by_name("Q4_0").to_packed(bytes(32 * 18), 32, 32)
    layout = BlobLayout(mxfp4.layout(32, 32), mxfp4.layout(32, 32), down.layout)
    monkeypatch.setattr(source, "layout", lambda _: layout)
    monkeypatch.setattr(source, "matrices", lambda *_: (odd, odd, down))
    with pytest.raises(WeightFileError, match="does not fit beside expert 0: it needs F32 scales"):
        load_arena(source, PLENTY)
