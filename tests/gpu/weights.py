"""Random weights of the published shapes, made on the GPU. Knows no kernel and no timing."""

import torch

from strata.kernels.expert_rows.work import ExpertBlobs
from strata.quant.layout import Array, BlobLayout, Code, MatrixLayout, MinKind, Place, ScaleKind
from strata.quant.packed import PackedMatrix, view_matrix
from tests.kernels.random_matrices import KINDS

HIDDEN, WIDTH = 2560, 640
WIDTH_OF_SUPER_SCALES = 768  # whose columns must be a multiple of 256
KIND = {kind.name: kind for kind in KINDS}


def _fill(layout: MatrixLayout, places: dict[Array, Place], memory: torch.Tensor) -> None:
    """Random scales that are finite into memory [n, bytes]; the codes are random already."""

    def view(array: Array) -> torch.Tensor:
        return memory[:, places[array].offset : places[array].offset + places[array].size]

    def put_halves(array: Array, most: float) -> None:
        part = view(array)
        halves = torch.rand(part.shape[0], part.shape[1] // 2, device=memory.device) * most
        part.copy_(halves.half().view(torch.uint8))

    if layout.scale_kind is ScaleKind.F16:
        put_halves(Array.SCALES, 0.02)
    elif layout.scale_kind in (ScaleKind.E8M0, ScaleKind.UE4M3):
        view(Array.SCALES).random_(108, 118).clamp_(max=126 if layout.scale_kind is ScaleKind.UE4M3 else 254)
    elif layout.scale_kind is ScaleKind.SUPER:
        put_halves(Array.SUPER_SCALES, 0.0005)
    if layout.min_kind is MinKind.F16:
        put_halves(Array.MINS, 0.02)
    elif layout.min_kind is MinKind.SUPER:
        put_halves(Array.SUPER_MINS, 0.0005)
    if layout.code is Code.BF16:
        values = torch.randn(memory.shape[0], places[Array.CODES].size // 2, device=memory.device)
        view(Array.CODES).copy_(values.bfloat16().view(torch.uint8))


def random_blobs(layout: BlobLayout, seats: int) -> ExpertBlobs:
    """Blobs of random codes, made on the GPU."""
    memory = torch.randint(0, 256, (seats, layout.total_bytes), dtype=torch.uint8, device="cuda")
    for matrix, places in zip(layout.matrices, layout.places(), strict=True):
        _fill(matrix, places, memory)
    posts = layout.post_scales
    memory[:, posts.offset : posts.offset + posts.size] = torch.ones(3, device="cuda").view(torch.uint8)
    return ExpertBlobs(layout, memory.view(-1))


def random_dense(layout: MatrixLayout) -> PackedMatrix:
    """A dense matrix of random codes, made on the GPU."""
    memory = torch.randint(0, 256, (1, layout.total_bytes), dtype=torch.uint8, device="cuda")
    _fill(layout, layout.places(), memory)
    return view_matrix(layout, memory[0], layout.places())


def blob_layout(gate: str, down: str) -> BlobLayout:
    """An expert of the published shape, or the next one that super scales allow."""
    width = WIDTH_OF_SUPER_SCALES if WIDTH % KIND[down].step else WIDTH
    first = KIND[gate].layout(width, HIDDEN)
    return BlobLayout(first, first, KIND[down].layout(HIDDEN, width))
