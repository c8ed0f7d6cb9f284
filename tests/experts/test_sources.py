"""Experts from files: the same values as the published tensors, one expert read at a time."""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strata.cli.synth import synth
from strata.errors import WeightFileError
from strata.experts.arena import load_arena
from strata.experts.sources import GgufExperts, QuantizedExperts, StoredExperts, advise, expert_layers, open_experts
from strata.hardware import MemoryFacts
from strata.native.file_map import FileMap
from strata.quant.formats import by_name
from strata.quant.layout import Code
from strata.weights.gguf_source import RawExperts, RawMatrix
from strata.weights.gguf_types import GgmlType
from strata.weights.header import read_header
from strata.weights.quantizing import QuantizingSource
from strata.weights.safetensors import open_model

PLENTY = MemoryFacts(total=1 << 40, available=1 << 40)
EXPERTS, WIDTH, HIDDEN = 3, 32, 64


class MappedExperts:
    """What GgufExperts asks of a GGUF file, over a map of a file that holds nothing but experts."""

    directory = Path("some.gguf")

    def __init__(self, folder: Path, fused: bool) -> None:
        self._fused = fused
        self.formats = {"gate": by_name("Q4_0"), "up": by_name("Q4_0"), "down": by_name("Q8_0")}
        random = np.random.default_rng(5)
        sizes = {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
        self.values = {
            part: random.standard_normal((EXPERTS, *size)).astype(np.float32) for part, size in sizes.items()
        }
        raw = {part: kept.quantize(self.values[part]).reshape(EXPERTS, -1) for part, kept in self.formats.items()}
        file = folder / "experts"
        file.write_bytes(np.concatenate((raw["gate"], raw["up"]), axis=1).tobytes() + raw["down"].tobytes())
        with file.open("rb") as opened:
            self._map = FileMap(os.dup(opened.fileno()), file)
        self._flat = np.frombuffer(self._map, np.uint8)

    def names(self) -> list[str]:
        return ["model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.experts.gate_up_proj", "model.norm.weight"]

    def shape(self, name: str) -> tuple[int, ...]:
        return (EXPERTS, HIDDEN, WIDTH) if "down" in name else (EXPERTS, 2 * WIDTH, HIDDEN)

    def raw_expert(self, name: str, expert: int) -> tuple[RawMatrix, ...]:
        gate_up_bytes = 2 * WIDTH * HIDDEN // 32 * 18
        if "down" in name:
            begin, size = EXPERTS * gate_up_bytes, HIDDEN * WIDTH // 32 * 34
            data = self._flat[begin + expert * size :][:size].reshape(HIDDEN, -1)
            return (RawMatrix(GgmlType(8, "Q8_0", 32, 34), WIDTH, data),)
        data = self._flat[expert * gate_up_bytes :][:gate_up_bytes].reshape(2 * WIDTH, -1)
        kind = GgmlType(2, "Q4_0", 32, 18)
        parts = [data] if self._fused else [data[:WIDTH], data[WIDTH:]]
        return tuple(RawMatrix(kind, HIDDEN, part) for part in parts)

    def raw_experts(self, name: str) -> tuple[RawExperts, ...]:
        each = [self.raw_expert(name, expert) for expert in range(EXPERTS)]
        return tuple(
            RawExperts(parts[0].type, parts[0].columns, self._together([part.data for part in parts]), (1.0,) * EXPERTS)
            for parts in zip(*each, strict=True)
        )

    def _together(self, matrices: list[np.ndarray]) -> np.ndarray:
        """Matrices of one size and distance as one view of the map, as a file's tensor is."""
        begin, following = (each.ctypes.data - self._flat.ctypes.data for each in matrices[:2])
        size = matrices[0].size
        span = self._flat[begin : begin + (EXPERTS - 1) * (following - begin) + size]
        strides = (following - begin, matrices[0].shape[1], 1)
        return np.lib.stride_tricks.as_strided(span, (EXPERTS, *matrices[0].shape), strides, writeable=False)


@pytest.mark.parametrize("fused", [True, False])
def test_experts_of_a_gguf_file_keep_their_published_values(tmp_path: Path, fused: bool) -> None:
    source = MappedExperts(tmp_path, fused)
    arena = load_arena(GgufExperts(source), PLENTY)  # type: ignore[arg-type]
    for expert in range(EXPERTS):
        blob = arena.expert("model.layers.0.mlp.", expert)
        for part, matrix in zip(("gate", "up", "down"), blob.matrices, strict=True):
            kept = source.formats[part]
            wanted = kept.dequantize(kept.quantize(source.values[part][expert]))
            assert np.array_equal(matrix.decode().numpy().reshape(-1), wanted)


def test_a_broken_expert_is_named(tmp_path: Path) -> None:
    source = MappedExperts(tmp_path, fused=False)
    flat = source._flat.copy()
    flat[2 * (2 * WIDTH * HIDDEN // 32 * 18) : 2 * (2 * WIDTH * HIDDEN // 32 * 18) + 2] = 0x00, 0x7C
    source._flat = flat
    with pytest.raises(WeightFileError, match=r"some.gguf: expert 2 of model.layers.0.mlp: a scale of a Q4_0"):
        load_arena(GgufExperts(source), PLENTY)  # type: ignore[arg-type]


def test_advice_is_given_for_maps_alone(tmp_path: Path) -> None:
    source = MappedExperts(tmp_path, fused=True)
    advise(source._flat[100:], mmap.MADV_WILLNEED)
    advise(source._flat[100:], mmap.MADV_DONTNEED)
    advise(np.zeros(10000, np.uint8), mmap.MADV_DONTNEED)
    assert source._flat.any(), "a file's pages come back"


def test_layers_are_in_the_order_of_the_model() -> None:
    names = [f"{prefix}.mlp.experts.down_proj" for prefix in ("mtp.layers.0", "model.layers.10", "model.layers.2")]
    assert expert_layers([*names, "model.norm.weight"]) == tuple(
        f"{prefix}.mlp." for prefix in ("model.layers.2", "model.layers.10", "mtp.layers.0")
    )


@pytest.mark.parametrize("layout", ["packed", "separate"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_experts_of_safetensors_are_kept_as_they_are_stored(tmp_path: Path, dtype: Any, layout: Any) -> None:
    directory = tmp_path / "model"
    # blocks of 48: some hold rows of gate and of up, and some are ragged
    synth("qwen3_moe", directory, fields=["vocab_size=8192"], dtype=dtype, experts=layout, fp8_block=48)
    source = open_model(directory)
    experts = open_experts(source)
    assert isinstance(experts, StoredExperts)
    layer = experts.layers()[0]
    gate_up = source.tensor(layer + "experts.gate_up_proj", torch.float32)
    down = source.tensor(layer + "experts.down_proj", torch.float32)
    for expert in (0, experts.count(layer) - 1):
        matrices = experts.matrices(layer, expert)
        assert matrices[0].layout.code is (Code.FP8 if dtype == "fp8" else Code.BF16)
        assert torch.equal(torch.cat([each.decode() for each in matrices[:2]]), gate_up[expert])
        assert torch.equal(matrices[2].decode(), down[expert])
    arena = load_arena(experts, PLENTY)
    assert torch.equal(arena.expert(layer, 1).down.decode(), down[1])


def test_a_broken_expert_of_safetensors_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    synth("qwen3_moe", directory, fields=["vocab_size=512"], dtype="fp8", experts="separate")
    file = directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[read_header(file)["model.layers.1.mlp.experts.2.up_proj.weight"].begin] = 0x7F
    file.write_bytes(content)
    words = rf"^{directory}: expert 2 of model\.layers\.1\.mlp: an FP8 weight or scale is not finite$"
    with pytest.raises(WeightFileError, match=words):
        load_arena(open_experts(open_model(directory)), PLENTY)


@pytest.mark.parametrize(("choice", "worst"), [("code4", 0.08), ("code8", 0.006)])
def test_experts_are_quantized_while_they_are_read(tiny_model: Path, choice: str, worst: float) -> None:
    source = QuantizingSource(open_model(tiny_model), choice)
    experts = open_experts(source)
    assert isinstance(experts, QuantizedExperts)
    layer = experts.layers()[-1]
    wanted = open_model(tiny_model).tensor(layer + "experts.down_proj", torch.float32)[1]
    found = experts.matrices(layer, 1)
    assert found[2].layout == experts.layout(layer).down
    assert (found[2].decode() - wanted).norm() <= worst * wanted.norm()
    assert torch.equal(found[2].decode(), source.tensor(layer + "experts.down_proj", torch.float32)[1])
    gate_up = torch.cat([each.decode() for each in found[:2]])
    assert torch.equal(gate_up, source.tensor(layer + "experts.gate_up_proj", torch.float32)[1])


@pytest.mark.parametrize("layout", ["packed", "separate"])
def test_an_expert_is_read_without_the_others(tmp_path: Path, layout: Any) -> None:
    directory = tmp_path / "model"
    synth("qwen3_moe", directory, fields=["vocab_size=8192"], experts=layout)
    source = open_model(directory)
    name = StoredExperts(source).layers()[0] + "experts.gate_up_proj"
    read: list[int] = []
    source.report_progress([name], lambda done, total, _: read.append(done))
    source.raw_expert(name, 1)
    assert read[-1] * source.shape(name)[0] == source.stored_bytes(name)
    with pytest.raises(WeightFileError, match="no expert 99"):
        source.raw_expert(name, 99)
