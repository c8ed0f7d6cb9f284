"""Weights asked for before they are needed: into the L2 cache, while the kernel before still runs.

Weights are what no kernel writes, so a program may ask for its own before it waits for its predecessor. Super scales
and minima are left to the loop: they are few. Elsewhere than on GPUs with dependent launches nothing is asked for.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs

import triton
import triton.language as tl

from strata.kernels import dependent
from strata.kernels.instructions import prefetch_to_l2
from strata.kernels.launch_shapes import LaunchShape
from strata.quant.layout import BLOCK_COLUMNS, Array, MatrixLayout


@triton.jit
def prefetch_share(
    arrays, tile, part, columns, PARTS: tl.constexpr, CODE_BYTES: tl.constexpr, SCALE_BYTES: tl.constexpr
):  # fmt: skip
    """Ask for share `part` of PARTS of a tile's codes and scales; no bytes: for nothing."""
    if CODE_BYTES > 0:
        _prefetch(arrays[0], tile, part, columns, PARTS, CODE_BYTES)
    if SCALE_BYTES > 0:
        _prefetch(arrays[1], tile, part, columns, PARTS, SCALE_BYTES)


@triton.jit
def _prefetch(array, tile, part, columns, PARTS: tl.constexpr, BYTES: tl.constexpr):
    size = columns * BYTES // 32  # of the tile
    first = size * part // PARTS // 16 * 16
    last = size * (part + 1) // PARTS // 16 * 16
    prefetch_to_l2(array.to(tl.pointer_type(tl.uint8)) + tile.to(tl.int64) * size + first, last - first)


def prefetch_constants(layout: MatrixLayout, launch: LaunchShape) -> dict[str, int | bool]:
    """Bytes of a tile's codes and scales in 32 columns, as constexpr arguments; 0 where nothing is to be asked for."""
    if not (launch.prefetches and dependent.HAS_DEPENDENT_LAUNCHES):
        return {"CODE_BYTES": 0, "SCALE_BYTES": 0}
    columns = layout.tiles * layout.columns
    codes, scales = (layout.array_bytes(array) * BLOCK_COLUMNS // columns for array in (Array.CODES, Array.SCALES))
    return {"CODE_BYTES": codes, "SCALE_BYTES": scales}
