"""A packed matrix row by row, before it is cut into tiles, and the cutting itself. NumPy only.

Knows the order of rows in a tile; knows no code and no published format.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.quant.layout import TILE_ROWS

AnyArray = NDArray[np.generic]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class RowMajor:
    """The arrays of a matrix with rows first; empty arrays are None.

    words: integer codes [rows, blocks, words] uint32, float codes [rows, columns] of their own width (bf16 as uint16,
    fp8 as uint8). Scales [rows, sub_blocks] as their bits: uint16 (f16), uint8 (e8m0, ue4m3), int8 (super), float32;
    mins uint16 or uint8; super scales and super mins [rows, super_blocks] uint16.
    """

    words: AnyArray
    scales: AnyArray | None = None
    super_scales: AnyArray | None = None
    mins: AnyArray | None = None
    super_mins: AnyArray | None = None


def to_tiles(array: AnyArray) -> Bytes:
    """[rows, ..] -> the bytes of [tiles, .., 16 rows]; missing rows of the last tile are zero."""
    rows = array.shape[0]
    tiles = -(-rows // TILE_ROWS)
    if rows % TILE_ROWS:
        filled = np.zeros((tiles * TILE_ROWS, *array.shape[1:]), array.dtype)
        filled[:rows] = array
        array = filled
    flat = array.reshape(tiles, TILE_ROWS, -1)
    tiled = np.empty((tiles, flat.shape[2], TILE_ROWS), array.dtype)
    for out, tile in zip(tiled, flat, strict=True):  # a tile stays in the cache: half the time of one transposition
        out[:] = tile.T
    return tiled.reshape(-1).view(np.uint8)


def from_tiles(tiled: Bytes, dtype: np.dtype | type, rows: int, *shape: int) -> AnyArray:
    """The inverse of `to_tiles`: bytes -> [rows, *shape] of `dtype`."""
    tiles = -(-rows // TILE_ROWS)
    flat = tiled.view(dtype).reshape(tiles, -1, TILE_ROWS).transpose(0, 2, 1)
    return np.ascontiguousarray(flat).reshape(tiles * TILE_ROWS, *shape)[:rows]
