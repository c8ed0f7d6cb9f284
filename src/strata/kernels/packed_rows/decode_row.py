"""One row of a packed table as float32: the values of `PackedMatrix.decode`, operation by operation.

Knows the layout of docs/storage-codes.md; knows neither who asks for the row nor where it goes. A table may have more
than 2^31 elements, and lies in the GPU's memory or in pinned host memory: kernels get the addresses of its arrays.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.packed_rows.decode import decode_steps
from strata.quant.layout import Array
from strata.quant.packed import PackedMatrix

# What a kernel that is launched with `table_arguments` lists as `do_not_specialize`, in its order.
TABLE_ARGUMENTS = (
    "codes", "scales", "super_scales", "mins", "super_mins", "t0", "t1", "t2", "t3", "offset", "post_scale", "columns",
)  # fmt: skip


def table_arguments(table: PackedMatrix) -> tuple[int | float, ...]:
    """`TABLE_ARGUMENTS`. The table's tensors must outlive the launch, and any graph that holds it."""
    steps = decode_steps(table.layout)
    codes = table.codes.data_ptr()
    addresses = [table.array(array).data_ptr() if table.array(array).numel() else codes for array in Array]
    return (*addresses, *steps.table, steps.offset, table.post_scale, table.layout.columns)


def table_constants(table: PackedMatrix) -> dict[str, object]:
    """The constexpr arguments beside them: CODE, SCALE, MIN, IS_FLOAT, IS_LINEAR, HAS_MIN, SUB_BLOCK."""
    return decode_steps(table.layout).constants()


@triton.jit
def open_arrays(codes, scales, super_scales, mins, super_mins, IS_FLOAT: tl.constexpr):
    """Addresses (int64) of a table's arrays -> pointers as the decode steps take them."""
    byte = tl.pointer_type(tl.uint8)
    word = tl.pointer_type(tl.uint8) if IS_FLOAT else tl.pointer_type(tl.int32)
    return codes.to(word), scales.to(byte), super_scales.to(byte), mins.to(byte), super_mins.to(byte)


@triton.jit
def decode_blocks(
    arrays, table, offset, post_scale, columns, row, block,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_FLOAT: tl.constexpr, IS_LINEAR: tl.constexpr,
    HAS_MIN: tl.constexpr, SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    """Blocks `block` (int32 [blocks]) of 32 columns of row `row` (an int64 scalar): float32 [blocks, 32].

    A column behind the last one repeats a value of the row.
    """
    if IS_FLOAT:
        value = _float_blocks(arrays, columns, row, block, CODE, SCALE, SUB_BLOCK)
    else:
        value = _integer_blocks(
            arrays, table, offset, columns, row, block, CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK
        )
    return value * post_scale


@triton.jit
def _float_blocks(
    arrays, columns, row, block, VALUE: tl.constexpr, SCALE: tl.constexpr, SUB_BLOCK: tl.constexpr
):  # fmt: skip
    tile, in_tile = row // 16, row % 16
    column = tl.minimum(block[:, None] * 32 + tl.arange(0, 32)[None, :], columns - 1)
    value = VALUE(arrays[0], (tile * columns + column) * 16 + in_tile)
    if SUB_BLOCK > 0:
        at = (tile * tl.cdiv(columns, SUB_BLOCK) + column // SUB_BLOCK) * 16 + in_tile
        value = value * SCALE(arrays[1], at, arrays[1], at)
    return value


@triton.jit
def _integer_blocks(
    arrays, table, offset, columns, row, block,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr,
):  # fmt: skip
    codes, scales, super_scales, mins, super_mins = arrays
    tile, in_tile, blocks = row // 16, row % 16, columns // 32
    column = tl.arange(0, 32)[None, :]
    at_block = tl.minimum(block, blocks - 1)[:, None]
    tile_block = tile * blocks + at_block
    words = CODE(codes, tile_block, in_tile, table)
    word = words[0]
    for index in tl.static_range(1, 8):
        word = tl.where(column // 4 == index, words[index], word)
    integer = (word << (24 - 8 * (column % 4))) >> 24
    if IS_LINEAR:
        integer += offset
    if SUB_BLOCK == 16:
        at = tile_block * 2 + column // 16
    elif SUB_BLOCK == 32:
        at = tile_block
    else:
        at = tile * (blocks // 2) + at_block // 2
    at = at * 16 + in_tile
    at_super = (tile * (blocks // 8) + at_block // 8) * 16 + in_tile
    value = integer.to(tl.float32) * SCALE(scales, at, super_scales, at_super)
    if HAS_MIN:
        value = value - MIN(mins, at, super_mins, at_super)
    return value
