"""Rows of a packed table in torch, on any device: the twin of triton.py. Knows the order of bytes in a tile."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from strata.quant.layout import TILE_ROWS, Array, MatrixLayout
from strata.quant.packed import PackedMatrix


def embed_rows(table: Sequence[PackedMatrix], tokens: torch.Tensor, streams_out: torch.Tensor, streams: int) -> None:
    """Read only the rows that are asked for; the others stay packed."""
    values = streams_out.new_full((tokens.numel(), table[0].layout.columns), float("nan"))
    first = 0
    for matrix in table:
        place = ((tokens >= first) & (tokens < first + matrix.layout.rows)).nonzero()[:, 0]
        if place.numel():
            values[place] = pick_rows(matrix, tokens[place].long() - first).decode().to(values.device)
        first += matrix.layout.rows
    streams_out.copy_(values.repeat(1, streams))


def pick_rows(matrix: PackedMatrix, rows: torch.Tensor) -> PackedMatrix:
    """The listed rows (int64 [n], n at least 1, on any device) as a matrix of their own in main memory."""
    rows = rows.to(matrix.codes.device)
    layout = replace(matrix.layout, rows=rows.numel())
    tile, in_tile = rows // TILE_ROWS, rows % TILE_ROWS
    arrays = []
    for array in Array:
        width = element_bytes(matrix.layout, array)
        if not width:
            arrays.append(torch.empty(0, dtype=torch.uint8))
            continue
        tiled = matrix.array(array).view(matrix.layout.tiles, -1, TILE_ROWS, width)
        picked = tiled[tile, :, in_tile].cpu()  # [n, elements, width]
        padded = F.pad(picked, (0, 0, 0, 0, 0, layout.tiles * TILE_ROWS - rows.numel()))
        arrays.append(padded.unflatten(0, (layout.tiles, TILE_ROWS)).transpose(1, 2).reshape(-1))
    codes, scales, super_scales, mins, super_mins = arrays
    return PackedMatrix(layout, codes, scales, super_scales, mins, super_mins, matrix.post_scale)


def element_bytes(layout: MatrixLayout, array: Array) -> int:
    """Bytes of one element, of which a tile holds 16 side by side; 0 if the matrix lacks the array."""
    total = layout.array_bytes(array)
    if array is Array.CODES:
        return layout.code.bits // 8 if layout.code.is_float else 4
    if array in (Array.SUPER_SCALES, Array.SUPER_MINS):
        return 2 if total else 0
    return total // (layout.tiles * TILE_ROWS * layout.sub_blocks)
