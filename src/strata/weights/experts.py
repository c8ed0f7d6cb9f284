"""One expert of a packed tensor as its files store it: values not converted, FP8 beside its scales.

Knows pieces and offsets; knows no storage code. What is read is one expert, never the tensor.
"""

from dataclasses import dataclass, replace

import torch

from strata.errors import WeightFileError
from strata.weights.fp8 import scale_shape
from strata.weights.header import FP8, StoredTensor
from strata.weights.layout import CanonicalTensor, Piece
from strata.weights.reading import OnBytes, read_piece, read_scale


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix [rows, columns] in the files' type; FP8 has the scales of its blocks."""

    code: str  # the files' word for the type: BF16, F8_E4M3
    weight: torch.Tensor
    scale: torch.Tensor | None = None  # [row blocks, column blocks] float32


def read_expert(
    tensor: CanonicalTensor, expert: int, block: tuple[int, int] | None, on_bytes: OnBytes
) -> tuple[StoredMatrix, ...]:
    """The matrices of one expert of [experts, rows, columns], one under another. Raises WeightFileError."""
    return tuple(_read(piece, block, on_bytes) for piece in expert_pieces(tensor, expert, block))


def read_matrices(
    tensor: CanonicalTensor, block: tuple[int, int] | None, on_bytes: OnBytes
) -> tuple[StoredMatrix, ...]:
    """A tensor [rows, columns] as it is stored: its matrices one under another. Raises WeightFileError."""
    return tuple(_read(piece, block, on_bytes) for piece in tensor.pieces)


def expert_pieces(tensor: CanonicalTensor, expert: int, block: tuple[int, int] | None) -> tuple[Piece, ...]:
    """The stored matrices of one expert, whether it has files' tensors of its own or a part of one."""
    if len(tensor.shape) != 3 or not 0 <= expert < tensor.shape[0]:
        raise WeightFileError(f"tensor {tensor.name} of shape {list(tensor.shape)} has no expert {expert}")
    whole = [piece for piece in tensor.pieces if piece.where == ()]
    if not whole:
        each = len(tensor.pieces) // tensor.shape[0]
        return tensor.pieces[expert * each : (expert + 1) * each]
    stored, scale = whole[0].stored, whole[0].scale
    part = _part_of(stored, expert, stored.shape[1:])
    if scale is not None:
        assert block is not None  # the layout was refused otherwise
        scale = _part_of(scale, expert, scale_shape(stored.shape[1:], block))
    return (Piece(part, scale, ()),)


def _part_of(stored: StoredTensor, index: int, shape: tuple[int, ...]) -> StoredTensor:
    size = stored.stored_bytes // stored.shape[0]
    begin = stored.begin + index * size
    return replace(stored, shape=shape, begin=begin, end=begin + size)


def _read(piece: Piece, block: tuple[int, int] | None, on_bytes: OnBytes) -> StoredMatrix:
    stored = piece.stored
    if stored.code != FP8:
        weight = torch.empty(stored.shape, dtype=stored.dtype)
        read_piece(piece, block, weight, on_bytes)
        return StoredMatrix(stored.code, weight)
    assert piece.scale is not None  # the layout was refused otherwise
    bits = torch.empty(stored.shape, dtype=torch.uint8)
    read_piece(Piece(replace(stored, code="U8"), None, ()), None, bits, on_bytes)
    return StoredMatrix(FP8, bits.view(torch.float8_e4m3fn), read_scale(piece.scale))
