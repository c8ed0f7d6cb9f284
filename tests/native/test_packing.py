"""The C++ packer and NumPy make the same bytes of every format; what is refused is refused in the same words."""

import dataclasses
from collections.abc import Iterator
from os import dup
from pathlib import Path

import numpy as np
import pytest
import torch

from strata.errors import EngineError, WeightFileError
from strata.native import library
from strata.native.file_map import FileMap
from strata.native.packing import Packing, pack, packs
from strata.native.pool import Pool
from strata.quant import formats
from strata.quant.formats import Format
from strata.quant.layout import Array
from strata.quant.packed import PackedMatrix
from strata.quant.packer import Packer
from tests.packed_buffers import to_buffer
from tests.quant.blocks import random_blocks

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

COLUMNS = 512
NATIVE = [kind for kind in formats.ALL if kind.name[:3] not in ("IQ2", "IQ3")]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(3, keeps_cores=False) as made:
        yield made


def blocks_of(kind: Format, rows: int, columns: int = COLUMNS, seed: int = 0) -> np.ndarray:
    """Bytes of a matrix [rows, row bytes] that the library packs."""
    raw = random_blocks(kind, rows * columns // kind.block_weights, seed)
    if kind.name == "MXFP4":
        raw[:, 0] = np.maximum(raw[:, 0], 1)
        raw[::7, 1:] &= 0x88  # blocks of zeros, whose exponents say nothing
        raw[::14, 0] = 0
    return raw.reshape(rows, -1)


def assert_same(found: PackedMatrix, wanted: PackedMatrix) -> None:
    assert (found.layout, found.post_scale) == (wanted.layout, wanted.post_scale)
    for array in Array:
        assert torch.equal(found.array(array), wanted.array(array)), array.name


def test_the_library_knows_all_formats_but_those_with_code_books() -> None:
    assert [kind.name for kind in formats.ALL if packs(kind.gguf_type)] == [kind.name for kind in NATIVE]


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("kind", NATIVE, ids=lambda kind: kind.name)
def test_both_roads_make_the_same_bytes(kind: Format, rows: int, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = blocks_of(kind, rows, seed=rows)
    wanted = kind.to_packed(raw, rows, COLUMNS, 0.37)
    monkeypatch.setattr(Format, "_blocks_of", lambda *_: pytest.fail("NumPy packed it"))
    assert_same(kind.to_packed(raw, rows, COLUMNS, 0.37, Packer(pool)), wanted)


@pytest.mark.parametrize("columns", [1, 13, 33])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats_have_any_number_of_columns(name: str, columns: int, pool: Pool) -> None:
    kind = formats.by_name(name)
    raw = blocks_of(kind, 21, columns)
    assert_same(kind.to_packed(raw, 21, columns, packer=Packer(pool)), kind.to_packed(raw, 21, columns))


@pytest.mark.parametrize("kind", NATIVE, ids=lambda kind: kind.name)
def test_every_scale_that_is_not_finite_is_refused_in_the_same_words(kind: Format, pool: Pool) -> None:
    rows = 19
    offsets = kind.half_scales or (0,)
    for offset in offsets:
        for row in (0, rows - 1):
            raw = blocks_of(kind, rows).copy()
            place = raw.shape[1] - kind.block_bytes + offset
            raw[row, place : place + 4] = 0xFF  # no number in any width; fp4 scales too
            with pytest.raises(WeightFileError) as slow:
                kind.to_packed(raw, rows, COLUMNS)
            with pytest.raises(WeightFileError) as fast:
                kind.to_packed(raw, rows, COLUMNS, packer=Packer(pool))
            assert str(fast.value) == str(slow.value)


@pytest.mark.parametrize("largest", [200, 254])
def test_scales_of_another_storage_are_left_to_numpy(largest: int, pool: Pool) -> None:
    kind = formats.by_name("MXFP4")
    raw = blocks_of(kind, 16, 64)
    raw[:, 0], raw[:, 17] = 0, largest
    raw[:, 1] = raw[:, 18] = 0x11
    wanted = kind.to_packed(raw, 16, 64)
    assert wanted.layout != kind.layout(16, 64) or wanted.post_scale != 1
    assert_same(kind.to_packed(raw, 16, 64, packer=Packer(pool)), wanted)


def test_a_file_is_read_without_its_map(tmp_path: Path, pool: Pool) -> None:
    kind, rows = formats.by_name("Q8_0"), 800  # several pieces, the last of them short
    raw = blocks_of(kind, rows, 1024)
    (tmp_path / "weights").write_bytes(b"before" + raw.tobytes())
    with (tmp_path / "weights").open("rb") as opened:
        mapped = np.frombuffer(FileMap(dup(opened.fileno()), tmp_path / "weights"), np.uint8)[6:].reshape(rows, -1)
    wanted = kind.to_packed(raw, rows, 1024)
    assert_same(kind.to_packed(mapped, rows, 1024, packer=Packer(pool)), wanted)
    (tmp_path / "weights").write_bytes(raw.tobytes()[:100_000])  # the map alone would end this process
    with pytest.raises(WeightFileError, match="a Q8_0 matrix cannot be read: the file ended early"):
        kind.to_packed(mapped, rows, 1024, packer=Packer(pool))


def test_a_wrong_number_of_bytes_is_told_in_the_same_words(pool: Pool) -> None:
    with pytest.raises(WeightFileError, match="takes 36 bytes; the file has 35"):
        formats.by_name("Q4_0").to_packed(bytes(35), 2, 32, packer=Packer(pool))


def test_matrices_at_equal_distances_are_one_job_and_the_first_bad_one_is_told(pool: Pool) -> None:
    kind, count, rows = formats.by_name("Q4_K"), 5, 18
    raw = np.stack([blocks_of(kind, rows, seed=seed) for seed in range(count)])
    raw[[2, 4], 17, :2] = 0xFF
    layout = kind.layout(rows, COLUMNS)
    room = torch.zeros(count, 2 * layout.total_bytes, dtype=torch.uint8)
    places = layout.places()
    arrays = tuple(room.data_ptr() + places[array].offset for array in Array)
    packing = Packing(kind.gguf_type, COLUMNS, raw, arrays, room.stride(0))
    assert pack(pool, [packing, dataclasses.replace(packing, data=raw[:2])]) == [2, None]
    for matrix in (0, 1, 3):
        wanted = to_buffer(kind.to_packed(raw[matrix], rows, COLUMNS))
        assert torch.equal(room[matrix, : layout.total_bytes], wanted)
    assert not room[:, layout.total_bytes :].any()


def test_what_contradicts_the_contract_is_named(pool: Pool) -> None:
    good = Packing(2, 32, np.zeros((1, 1, 18), np.uint8), (64, 64, None, None, None))
    for changes, sentence in (
        ({"type": 16}, "type 16 are not packed here"),
        ({"columns": 33}, "type 2 has blocks of 32"),
        ({"arrays": (64, None, None, None, None)}, "has no place"),
        ({"arrays": (65, 64, None, None, None)}, "multiple of 64"),
    ):
        with pytest.raises(EngineError, match=sentence):
            pack(pool, [dataclasses.replace(good, **changes)])
    for data in (np.zeros((1, 2, 36), np.uint8)[..., :18], np.zeros((1, 1, 18), np.int8), np.zeros((1, 18), np.uint8)):
        with pytest.raises(ValueError, match="data must be uint8 with whole rows"):
            dataclasses.replace(good, data=data)
