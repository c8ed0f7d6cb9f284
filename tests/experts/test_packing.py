"""Blobs by the library and by Python: the same bytes, the same refusals, told of as they come."""

from dataclasses import replace
from os import dup
from pathlib import Path

import numpy as np
import pytest
import torch

from strata.errors import WeightFileError
from strata.experts import packing
from strata.experts.arena import load_arena
from strata.experts.packing import PackingThreads, fill_blobs
from strata.experts.sources import GgufExperts
from strata.experts.uploading import Staging, upload_experts
from strata.hardware import MemoryFacts
from strata.native import library
from strata.native.file_map import FileMap
from strata.quant.formats import by_name
from strata.weights.gguf_source import RawExperts, RawMatrix
from strata.weights.gguf_types import GgmlType
from tests.quant.blocks import mild_blocks

LAYER, COUNT, WIDTH, HIDDEN = "model.layers.0.mlp.", 7, 32, 64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
PLENTY = MemoryFacts(total=1 << 40, available=1 << 40)
needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


class BlocksInMemory:
    """What GgufExperts asks of a GGUF file: one layer, gate and up in one tensor, a factor beside every expert."""

    directory = Path("some.gguf")

    def __init__(self, inner: str = "Q4_0", outer: str = "Q8_0") -> None:
        self.tensors = {
            LAYER + "experts.gate_up_proj": self._tensor(inner, 2 * WIDTH, HIDDEN),
            LAYER + "experts.down_proj": self._tensor(outer, HIDDEN, WIDTH),
        }

    @staticmethod
    def _tensor(name: str, rows: int, columns: int) -> RawExperts:
        kind = by_name(name)
        blocks = mild_blocks(kind, COUNT * rows * columns // kind.block_weights, rows)
        kept = GgmlType(kind.gguf_type, name, kind.block_weights, kind.block_bytes)
        return RawExperts(kept, columns, blocks.reshape(COUNT, rows, -1), tuple(2.0**-each for each in range(COUNT)))

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        found = self.tensors[name]
        return (*found.data.shape[:2], found.columns)

    def raw_experts(self, name: str) -> tuple[RawExperts]:
        return (self.tensors[name],)

    def raw_expert(self, name: str, expert: int) -> tuple[RawMatrix]:
        found = self.tensors[name]
        return (RawMatrix(found.type, found.columns, found.data[expert], found.post_scales[expert]),)


def filled(file: BlocksInMemory, is_native: bool) -> tuple[torch.Tensor, list[int]]:
    source = GgufExperts(file)  # type: ignore[arg-type]
    blobs = torch.zeros(COUNT, source.layout(LAYER).total_bytes, dtype=torch.uint8)
    with PackingThreads(2, is_native=is_native) as threads:
        return blobs, list(fill_blobs(source, LAYER, 0, blobs, threads))


@needs_library
@pytest.mark.parametrize("kinds", [("Q4_0", "Q8_0"), ("BF16", "F32"), ("MXFP4", "Q5_1")])
def test_both_roads_make_the_same_blobs(kinds: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = BlocksInMemory(*kinds)
    wanted, one_by_one = filled(file, is_native=False)
    assert one_by_one == list(range(1, COUNT + 1))
    monkeypatch.setattr(GgufExperts, "matrices", lambda *_: pytest.fail("Python packed it"))
    monkeypatch.setattr(packing, "BATCH_BYTES", 3 * wanted.shape[1])
    found, batches = filled(file, is_native=True)
    assert batches == [3, 6, 7]
    assert torch.equal(found, wanted)


@needs_library
@pytest.mark.parametrize("name", ["down_proj", "gate_up_proj"])
def test_an_expert_that_is_refused_is_named_in_the_words_of_python(name: str) -> None:
    file = BlocksInMemory()
    file.tensors[f"{LAYER}experts.{name}"].data[4, -1, :2] = 0xFF
    for is_native in (False, True):
        with pytest.raises(WeightFileError, match=r"some.gguf: expert 4 of model.layers.0.mlp: a scale of a Q\d_0"):
            filled(file, is_native)


@needs_library
def test_a_factor_that_is_not_finite_is_refused() -> None:
    file = BlocksInMemory()
    down = file.tensors[LAYER + "experts.down_proj"]
    scales = (*down.post_scales[:5], float("inf"), 1.0)
    file.tensors[LAYER + "experts.down_proj"] = RawExperts(down.type, down.columns, down.data, scales)
    with pytest.raises(WeightFileError, match=r"expert 5 of .*: the scale of a Q8_0 tensor is not finite"):
        filled(file, is_native=True)


@needs_library
def test_a_file_that_ends_early_is_named_with_the_layer(tmp_path: Path) -> None:
    file, weights = BlocksInMemory(), tmp_path / "weights"
    down = file.tensors[LAYER + "experts.down_proj"]
    weights.write_bytes(down.data.tobytes())
    with weights.open("rb") as opened:
        mapped = np.frombuffer(FileMap(dup(opened.fileno()), weights), np.uint8).reshape(down.data.shape)
    file.tensors[LAYER + "experts.down_proj"] = replace(down, data=mapped)
    source = GgufExperts(file)  # type: ignore[arg-type]
    blobs = torch.zeros(COUNT, source.layout(LAYER).total_bytes, dtype=torch.uint8)
    weights.write_bytes(b"")
    words = rf"^{weights}: the experts of model\.layers\.0\.mlp cannot be read: the file ended early: it was shortened"
    with (
        PackingThreads(2) as threads,
        pytest.raises(WeightFileError, match=words),
    ):
        list(fill_blobs(source, LAYER, 0, blobs, threads))


@needs_library
def test_an_expert_of_another_storage_is_refused() -> None:
    file = BlocksInMemory("MXFP4")
    gate_up = file.tensors[LAYER + "experts.gate_up_proj"].data
    gate_up[3, 0, 0], gate_up[3, 1, 0], gate_up[3, :2, 1] = 0, 253, 0x11
    with pytest.raises(WeightFileError, match=r"expert 3 of .* does not fit beside expert 0: it needs F32 scales"):
        filled(file, is_native=True)


def test_formats_with_code_books_are_packed_in_python() -> None:
    file = BlocksInMemory()
    kind = by_name("IQ3_S")
    shapes = {LAYER + "experts.gate_up_proj": (512, 256), LAYER + "experts.down_proj": (256, 256)}
    for name, (rows, columns) in shapes.items():
        blocks = mild_blocks(kind, COUNT * rows * columns // 256, rows).reshape(COUNT, rows, -1)
        kept = GgmlType(kind.gguf_type, "IQ3_S", 256, kind.block_bytes)
        file.tensors[name] = RawExperts(kept, columns, blocks, (1.0,) * COUNT)
    found, steps = filled(file, is_native=True)
    assert steps == list(range(1, COUNT + 1))
    assert torch.equal(found, filled(file, is_native=False)[0])


@pytest.mark.parametrize("device", DEVICES)
def test_a_layer_is_uploaded_in_batches_through_two_buffers(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = GgufExperts(BlocksInMemory())  # type: ignore[arg-type]
    wanted = load_arena(source, PLENTY).buffer
    size = source.layout(LAYER).total_bytes
    monkeypatch.setattr("strata.experts.uploading.BATCH_BYTES", 3 * size + 1)
    taken: list[tuple[int, int]] = []
    kept = Staging.take

    def take(staging: Staging, asked: int) -> torch.Tensor:
        buffer = kept(staging, asked)
        taken.append((buffer.data_ptr(), asked // size))
        return buffer

    monkeypatch.setattr(Staging, "take", take)
    told: list[int] = []
    with PackingThreads(2) as threads:
        found = upload_experts(
            source, LAYER, Staging(torch.device(device)), threads, lambda _, done, __: told.append(done)
        )
    assert found.device.type == device
    assert torch.equal(found.cpu(), wanted)
    assert [count for _, count in taken] == [3, 3, 1]
    assert taken[0][0] == taken[2][0] != taken[1][0]
    assert told == sorted(told) and told[-1] == found.numel()
