"""One expert in one piece: codes of gate, up and down, then their scales, so that one copy moves it.

Knows packed matrices and the blob's layout; knows no file and where no blob lies.
"""

from dataclasses import dataclass

import torch

from strata.quant.layout import MATRICES_OF_AN_EXPERT, BlobLayout
from strata.quant.packed import PackedMatrix, view_matrix

ExpertMatrices = tuple[PackedMatrix, PackedMatrix, PackedMatrix]  # gate, up, down


@dataclass(frozen=True)
class ExpertBlob:
    """One expert: its bytes, and gate [width, hidden], up [width, hidden] and down [hidden, width] as views of them."""

    layout: BlobLayout
    buffer: torch.Tensor  # [layout.total_bytes] uint8
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix

    @property
    def matrices(self) -> ExpertMatrices:
        """Gate, up, down."""
        return self.gate, self.up, self.down


def layout_of(matrices: ExpertMatrices) -> BlobLayout:
    """The blob that three matrices make. Raises ValueError if they do not fit together."""
    gate, up, down = matrices
    return BlobLayout(gate.layout, up.layout, down.layout)


def write_blob(layout: BlobLayout, buffer: torch.Tensor, matrices: ExpertMatrices) -> None:
    """Fill `buffer`, uint8 of the blob's size. Raises ValueError if a matrix is not what the layout says."""
    _check_size(layout, buffer)
    for matrix, wanted, places in zip(matrices, layout.matrices, layout.places(), strict=True):
        view_matrix(wanted, buffer, places).copy_arrays_from(matrix)
    factors = torch.tensor([[matrix.post_scale for matrix in matrices]], dtype=torch.float32)
    write_post_scales(layout, buffer[None], factors)


def write_post_scales(layout: BlobLayout, blobs: torch.Tensor, factors: torch.Tensor) -> None:
    """Put float32 [n, 3] (gate, up, down) into uint8 [n, blob bytes]."""
    place = layout.post_scales
    blobs[:, place.offset : place.offset + place.size] = factors.view(torch.uint8)


def view_blob(layout: BlobLayout, buffer: torch.Tensor) -> ExpertBlob:
    """An expert whose bytes lie in `buffer`, uint8 of the blob's size; nothing is copied."""
    _check_size(layout, buffer)
    factors = _post_scales(layout, buffer).clone().view(torch.float32).tolist()
    gate, up, down = (
        view_matrix(matrix, buffer, places, factor)
        for matrix, places, factor in zip(layout.matrices, layout.places(), factors, strict=True)
    )
    return ExpertBlob(layout, buffer, gate, up, down)


def _check_size(layout: BlobLayout, buffer: torch.Tensor) -> None:
    if buffer.dtype != torch.uint8 or buffer.shape != (layout.total_bytes,):
        raise ValueError(f"a blob takes {layout.total_bytes} uint8, not {list(buffer.shape)} {buffer.dtype}")


def _post_scales(layout: BlobLayout, buffer: torch.Tensor) -> torch.Tensor:
    place = layout.post_scales
    assert place.size == 4 * MATRICES_OF_AN_EXPERT
    return buffer[place.offset : place.offset + place.size]
