"""One expert of a packed tensor: where its bytes are, without its neighbours. tests/experts reads values with it."""

from pathlib import Path

import pytest

from strata.errors import WeightFileError
from strata.weights.experts import expert_pieces
from strata.weights.header import StoredTensor
from strata.weights.layout import CanonicalTensor, Piece


def test_a_part_of_one_stored_tensor() -> None:
    stored = StoredTensor("experts", Path("file"), "BF16", (4, 6, 8), 1000, 1000 + 4 * 6 * 8 * 2)
    (piece,) = expert_pieces(CanonicalTensor("experts", stored.shape, (Piece(stored, None, ()),)), 2, None)
    assert (piece.stored.begin, piece.stored.end, piece.stored.shape) == (1192, 1288, (6, 8))


def test_a_part_has_its_own_scales() -> None:
    stored = StoredTensor("experts", Path("file"), "F8_E4M3", (4, 6, 8), 0, 4 * 6 * 8)
    scale = StoredTensor("scales", Path("file"), "F32", (4, 2, 2), 500, 500 + 4 * 4 * 4)
    (piece,) = expert_pieces(CanonicalTensor("experts", stored.shape, (Piece(stored, scale, ()),)), 3, (4, 4))
    assert piece.scale is not None
    assert (piece.scale.begin, piece.scale.end, piece.scale.shape) == (548, 564, (2, 2))


def test_tensors_of_their_own_are_found_by_number() -> None:
    halves = [StoredTensor(f"{e}.{part}", Path("file"), "BF16", (3, 8), 0, 48) for e in range(3) for part in "gu"]
    pieces = tuple(Piece(half, None, (index // 2, slice(0, 3))) for index, half in enumerate(halves))
    tensor = CanonicalTensor("experts", (3, 6, 8), pieces)
    assert [piece.stored.name for piece in expert_pieces(tensor, 1, None)] == ["1.g", "1.u"]
    with pytest.raises(WeightFileError, match="no expert 3"):
        expert_pieces(tensor, 3, None)
