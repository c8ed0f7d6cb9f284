"""Weights of listed experts that the programs of gate and up ask for, into the L2 cache: their own, parts of down's.

Down's come while memory would be idle: at the end of gate's and up's launch and between the two. Super scales and
minima are left to the loops: they are few. Elsewhere than on GPUs with dependent launches nothing is asked for. Knows
no loop and no order of additions.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from collections.abc import Mapping

import triton
import triton.language as tl

from strata.kernels import dependent
from strata.kernels.instructions import prefetch_to_l2
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.prefetch import prefetch_share
from strata.quant.layout import Array, Place


@triton.jit
def prefetch_block(codes, scales, block, columns, CODE_BYTES: tl.constexpr, SCALE_BYTES: tl.constexpr):
    """Ask for the two tiles of block `block` of h in one matrix: they lie one behind the other. Bytes: of one tile."""
    prefetch_share((codes, scales), block, 0, columns, 1, 2 * CODE_BYTES, 2 * SCALE_BYTES)


@triton.jit
def range_of_part(size, part, parts):
    """Where part `part` of `parts` of `size` bytes begins, and its length: multiples of 16, if `size` is one."""
    step = tl.cdiv(size, parts * 16) * 16
    first = tl.minimum(part * step, size)
    return first, tl.minimum(step, size - first)


@triton.jit
def prefetch_part(array, size, part, parts):
    """Ask for part `part` of `parts` of the `size` bytes at `array` uint8; all scalars, `size` a multiple of 16."""
    first, length = range_of_part(size, part, parts)
    prefetch_to_l2(array + first, length)


def ahead_of(launch: LaunchShape) -> int:
    """For how many last places of the list this launch asks for down's weights."""
    return launch.ahead if dependent.HAS_DEPENDENT_LAUNCHES else 0


def down_places(places: Mapping[Array, Place]) -> tuple[int, int, int, int]:
    """Offset and size in a blob of down's codes, then of its scales, in bytes."""
    codes, scales = places[Array.CODES], places[Array.SCALES]
    return codes.offset, codes.size, scales.offset, scales.size
