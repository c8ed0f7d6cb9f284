"""Sizes and offsets of docs/storage-codes.md, counted by hand."""

import pytest

from strata.quant.layout import Array, BlobLayout, Code, MatrixLayout, MinKind, Place, ScaleKind

NIBBLES = tuple(range(-8, 8))


def q4_0(rows: int, columns: int) -> MatrixLayout:
    return MatrixLayout(rows, columns, Code.CODE4, 32, ScaleKind.F16, table=NIBBLES)


def test_arrays_of_a_matrix_by_itself() -> None:
    layout = MatrixLayout(17, 512, Code.CODE4, 32, ScaleKind.SUPER, MinKind.SUPER, tuple(range(16)))
    assert (layout.tiles, layout.blocks, layout.sub_blocks, layout.super_blocks) == (2, 16, 16, 2)
    assert layout.places() == {
        Array.CODES: Place(0, 32 * 256),
        Array.SCALES: Place(8192, 32 * 16),
        Array.SUPER_SCALES: Place(8704, 32 * 2 * 2),
        Array.MINS: Place(8832, 32 * 16),
        Array.SUPER_MINS: Place(9344, 32 * 2 * 2),
    }
    assert layout.total_bytes == 9472
    assert layout.bits_per_weight == 4 + 2 * (8 / 32 + 16 / 256)


def test_arrays_begin_at_multiples_of_64() -> None:
    layout = MatrixLayout(16, 32, Code.CODE2, 32, ScaleKind.E8M0, MinKind.F16, (0, 1, 2, 3))
    assert [place.offset for place in layout.places().values()] == [0, 128, 192, 192, 256]
    assert layout.total_bytes == 256


@pytest.mark.parametrize(
    ("code", "bits"), [(Code.CODE2, 2.25), (Code.CODE8, 8.25), (Code.F32, 32), (Code.BF16, 16), (Code.FP8, 8.25)]
)
def test_bits_of_a_weight(code: Code, bits: float) -> None:
    if code.is_float:
        kind = ScaleKind.F32 if code is Code.FP8 else ScaleKind.NONE
        layout = MatrixLayout(3, 384, code, 128, kind)
    else:
        layout = MatrixLayout(3, 384, code, 64, ScaleKind.F16, table=(0,) * (4 if code is Code.CODE2 else 0))
    assert layout.bits_per_weight == bits


def test_a_blob_holds_codes_first() -> None:
    blob = BlobLayout(q4_0(32, 64), q4_0(32, 64), q4_0(64, 32))
    gate, up, down = blob.places()
    assert [each[Array.CODES] for each in (gate, up, down)] == [Place(0, 1024), Place(1024, 1024), Place(2048, 1024)]
    assert [each[Array.SCALES] for each in (gate, up, down)] == [Place(3072, 128), Place(3200, 128), Place(3328, 128)]
    assert gate[Array.MINS].size == 0
    assert blob.post_scales == Place(3456, 12)
    assert blob.total_bytes == 3584


def test_an_expert_of_the_largest_model_takes_what_was_measured() -> None:
    blob = BlobLayout(q4_0(640, 2560), q4_0(640, 2560), q4_0(2560, 640))
    assert blob.total_bytes == 3 * 640 * 2560 * 9 // 16 + 256


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"columns": 48}, "32"),
        ({"sub_block": 64, "columns": 96}, "64"),
        ({"sub_block": 8}, "sub_block"),
        ({"scale_kind": ScaleKind.NONE}, "needs scales"),
        ({"scale_kind": ScaleKind.SUPER}, "256"),
        ({"min_kind": MinKind.SUPER}, "256"),
        ({"table": (1, 2)}, "16 integers"),
        ({"table": (200,) * 16}, "8 bits"),
        ({"rows": 0}, "at least 1"),
        ({"code": Code.BF16}, "float code"),
        ({"code": Code.FP8, "table": ()}, "F32"),
    ],
)
def test_what_the_document_does_not_have_is_refused(wrong: dict, words: str) -> None:
    right = {"rows": 16, "columns": 64, "code": Code.CODE4, "scale_kind": ScaleKind.F16, "table": NIBBLES}
    with pytest.raises(ValueError, match=words):
        MatrixLayout(**(right | wrong))


def test_matrices_of_different_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="fit together"):
        BlobLayout(q4_0(16, 64), q4_0(16, 64), q4_0(64, 64))
