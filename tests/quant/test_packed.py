"""Codes in tiles: every element stands where docs/storage-codes.md says, and comes back."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.quant import code2, code4, code8, float_codes
from strata.quant.layout import Array, Code, MatrixLayout, MinKind, ScaleKind
from strata.quant.packed import PackedMatrix, join_codes, min_values, pack, scale_values, view_matrix
from strata.quant.rows import RowMajor, from_tiles, to_tiles
from tests.packed_buffers import to_buffer


def random_matrix(layout: MatrixLayout, seed: int = 0) -> tuple[PackedMatrix, np.ndarray]:
    """A matrix of an integer code with f16 scales, and its codes [rows, columns]."""
    random = np.random.default_rng(seed)
    shape = (layout.rows, layout.columns)
    if layout.code is Code.CODE8:
        codes = random.integers(-128, 128, shape).astype(np.int8)
    else:
        codes = random.integers(0, len(layout.table), shape).astype(np.uint8)
    scales = random.standard_normal((layout.rows, layout.sub_blocks)).astype(np.float16).view(np.uint16)
    return pack(layout, RowMajor(join_codes(layout.code, codes), scales)), codes


def test_code4_stands_where_the_document_says() -> None:
    layout = MatrixLayout(20, 64, Code.CODE4, 32, ScaleKind.F16, table=tuple(range(16)))
    matrix, codes = random_matrix(layout)
    words = matrix.codes.numpy().reshape(2, 2, 4, 16, 4)  # tile, block, word, row, byte
    for row, column in ((0, 0), (3, 17), (15, 31), (16, 32), (19, 63)):
        block, inside = divmod(column, 32)
        half, element = divmod(inside, 16)
        byte = words[row // 16, block, element // 4, row % 16, element % 4]
        assert (byte >> 4 if half else byte & 15) == codes[row, column]
    assert not words[1, :, :, 4:].any(), "rows that do not exist are zero"


def test_code8_stands_where_the_document_says() -> None:
    matrix, codes = random_matrix(MatrixLayout(16, 64, Code.CODE8, 32, ScaleKind.F16))
    words = matrix.codes.numpy().view(np.int8).reshape(1, 2, 8, 16, 4)
    for row, column in ((0, 0), (3, 17), (15, 63)):
        assert words[0, column // 32, column % 32 // 4, row, column % 4] == codes[row, column]


def test_code2_stands_where_the_document_says() -> None:
    matrix, codes = random_matrix(MatrixLayout(16, 64, Code.CODE2, 64, ScaleKind.F16, table=(-1, 0, 1, 2)))
    words = matrix.codes.numpy().reshape(1, 2, 2, 16, 4)
    for row in (0, 7, 15):
        for column in range(64):
            field, rest = divmod(column % 32, 8)
            byte = words[0, column // 32, rest // 4, row, rest % 4]
            assert (byte >> (2 * field)) & 3 == codes[row, column]


def test_scales_and_float_codes_stand_row_by_row() -> None:
    values = np.arange(20 * 5, dtype=np.float32).reshape(20, 5)
    matrix = pack(MatrixLayout(20, 5, Code.F32), RowMajor(values))
    tiles = matrix.codes.numpy().view(np.float32).reshape(2, 5, 16)
    assert tiles[1, 4, 3] == values[19, 4]
    assert torch.equal(matrix.decode(), torch.from_numpy(values))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([code2, code4, code8]), st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**31))
def test_split_undoes_join(code, rows: int, blocks: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    random = np.random.default_rng(seed)
    codes = random.integers(0, {2: 4, 4: 16, 8: 256}[code.WORDS], (rows, blocks * 32)).astype(np.uint8)
    codes = codes.view(np.int8) if code is code8 else codes
    words = code.join(codes)
    assert words.shape == (rows, blocks, code.WORDS)
    assert np.array_equal(code.split(words), codes)
    tiled = to_tiles(words)
    assert np.array_equal(from_tiles(tiled, np.uint32, rows, blocks, code.WORDS), words)


def test_values_are_scale_times_integer_minus_minimum_times_post_scale() -> None:
    layout = MatrixLayout(1, 256, Code.CODE4, 16, ScaleKind.SUPER, MinKind.SUPER, tuple(range(-8, 8)))
    codes = np.tile(np.arange(16, dtype=np.uint8), 16)[None]
    halves = np.array([[0.5]], np.float16).view(np.uint16)
    scales, mins = np.arange(-8, 8, dtype=np.int8)[None], np.arange(16, dtype=np.uint8)[None]
    matrix = pack(layout, RowMajor(join_codes(Code.CODE4, codes), scales, halves, mins, halves), post_scale=0.25)
    wanted = (np.arange(-8, 8)[:, None] * 0.5 * np.arange(-8, 8)[None] - 0.5 * np.arange(16)[:, None]) * 0.25
    assert np.array_equal(matrix.decode().numpy().reshape(16, 16), wanted.astype(np.float32))


def test_every_scale_kind_is_exact() -> None:
    kinds = {
        ScaleKind.F16: (np.arange(0x7C00, dtype=np.uint16), np.arange(0x7C00, dtype=np.uint16).view(np.float16)),
        ScaleKind.E8M0: (np.arange(255, dtype=np.uint8), np.ldexp(1.0, np.arange(255) - 127)),
        ScaleKind.UE4M3: (
            np.arange(127, dtype=np.uint8),
            torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy(),
        ),
    }
    for kind, (bits, wanted) in kinds.items():
        layout = MatrixLayout(1, 32 * len(bits), Code.CODE8, 32, kind)
        words = np.zeros((1, len(bits), 8), np.uint32)
        found = scale_values(layout, RowMajor(words, bits[None]))
        assert np.array_equal(found[0].astype(np.float64), wanted.astype(np.float64)), kind
        assert min_values(layout, RowMajor(words, bits[None])) is None


def test_a_matrix_in_one_buffer_is_the_same_matrix() -> None:
    layout = MatrixLayout(20, 64, Code.CODE4, 32, ScaleKind.F16, table=tuple(range(16)))
    matrix, _ = random_matrix(layout)
    buffer = to_buffer(matrix)
    again = view_matrix(layout, buffer, layout.places())
    assert torch.equal(again.decode(), matrix.decode())
    assert again.codes.data_ptr() == buffer.data_ptr()
    other, _ = random_matrix(MatrixLayout(20, 64, Code.CODE4, 64, ScaleKind.F16, table=tuple(range(16))))
    with pytest.raises(ValueError, match="does not go into"):
        again.copy_arrays_from(other)


def test_arrays_of_another_size_are_refused() -> None:
    layout = MatrixLayout(16, 64, Code.CODE8, 32, ScaleKind.F16)
    with pytest.raises(ValueError, match="SCALES"):
        pack(layout, RowMajor(np.zeros((16, 2, 8), np.uint32), np.zeros((16, 4), np.uint16)))
    matrix, _ = random_matrix(layout)
    assert matrix.array(Array.MINS).numel() == 0


def test_bf16_is_rounded_like_torch() -> None:
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    values = np.concatenate((values, np.array([1 + 2**-8, 1 + 3 * 2**-8, 1e-40, -0.0], np.float32)))
    wanted = torch.from_numpy(values).bfloat16()
    bits = float_codes.round_to_bf16(values)
    assert np.array_equal(bits, wanted.view(torch.uint16).numpy())
    assert np.array_equal(float_codes.widen(bits, Code.BF16), wanted.float().numpy())
