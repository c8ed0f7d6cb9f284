"""A tile of a packed matrix times gathered rows, for Triton kernels: [outputs, rows] float32 on the matrix units.

Knows neither where rows come from nor where products go. A product's bits depend on its row and its matrix alone: the
matrix units add sixteen columns at a time in rising order, whatever the number of rows beside it, and columns beyond
the matrix are zeros. The weights are the left operand, in registers; the rows the right one, in shared memory.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.read_products.weights import float_weights, integer_weights


@triton.jit
def _as_it_is_ptx(values):
    # A product that nothing but the next one reads is cut into sixteen columns each and waited for one by one: a use
    # that is no instruction keeps a step's together (0.62 instead of 0.57 of torch.mm for dense matrices on an H200).
    return tl.inline_asm_elementwise("", "=f,0", [values], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _as_it_is_plain(values):
    return values


as_it_is = _as_it_is_plain if triton.knobs.runtime.interpret else _as_it_is_ptx


@triton.jit
def load_rows(x, row, first, columns, K: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr):
    """bf16 [N, K]: columns first .. of the rows `row` [N] of x [.., columns], 0 beyond the last column."""
    width = columns // 8 * 8 if ALIGNED else columns  # the compiler sees a multiple of sixteen bytes
    column = first + tl.arange(0, K)[None, :]
    at = x + row[:, None] * width + column
    return tl.load(at) if EVEN else tl.load(at, mask=column < width, other=0.0)


@triton.jit
def store_products(out, stride, row, is_row, output, outputs, products, ALIGNED: tl.constexpr):
    """products [O, N] -> out[row, output] where both exist. ALIGNED: 16 bytes of out lie together at such multiples."""
    step = stride // 8 * 8 if ALIGNED else stride
    limit = outputs // 8 * 8 if ALIGNED else outputs
    at = out + row[:, None].to(tl.int64) * step + output[None, :]
    values = tl.trans(products.to(out.dtype.element_ty))
    tl.store(at, values, mask=is_row[:, None] & (output < limit)[None, :])


@triton.jit
def weights_of_step(
    tiles, step, columns, CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, TABLE: tl.constexpr,
    SIZES: tl.constexpr, IS_FLOAT: tl.constexpr, PAIRED: tl.constexpr, KB: tl.constexpr, EVEN: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """The tiles' weights of step `step` of KB blocks: a tuple of the parts, bf16 [P * 16, KB * 32] each."""
    if IS_FLOAT:
        parts = float_weights(tiles, step, columns, CODE, SIZES, PAIRED, KB, EVEN)
    else:
        parts = (integer_weights(tiles, step, columns, CODE, SCALE, MIN, TABLE, SIZES, PAIRED, KB, EVEN, WARPS),)
    return parts


@triton.jit
def add_products(parts, x, products, IS_LAST: tl.constexpr):
    """products [M, N] and those of the parts [M, K] and x [K, N].

    IS_LAST: whoever comes next needs them. The compiler waits where products are used inside the loop; those that only
    the next step adds to stay under way beside whatever stands behind them.
    """
    for part in tl.static_range(len(parts)):
        products = tl.dot(parts[part], x, products)
        if IS_LAST or len(parts) > 1:
            products = as_it_is(products)
    return products


@triton.jit
def multiply_tile(
    tiles, x, row_1, row_2, columns, CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, TABLE: tl.constexpr,
    SIZES: tl.constexpr, IS_FLOAT: tl.constexpr, PAIRED: tl.constexpr, ROWS_1: tl.constexpr, ROWS_2: tl.constexpr,
    KB: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Products of one or two groups of P tiles and two groups of rows: of each group of tiles a pair, float32
    [P * 16, ROWS_1] and [P * 16, ROWS_2] (16 x 16 of none).

    tiles: a tuple of what `tiles_of` gives; row_1 int32 [ROWS_1]: numbers of rows of x bf16 [.., columns]. Weights are
    decoded once for both groups of rows. OVERLAP: those of the second tiles while the first ones' products are under
    way, which takes more registers.
    """
    K: tl.constexpr = KB * 32
    OUTPUTS: tl.constexpr = tiles[0][0].shape[0] * 16
    HAS_SECOND: tl.constexpr = len(tiles) == 2
    first_1 = tl.zeros((OUTPUTS, ROWS_1), tl.float32)
    first_2 = tl.zeros((OUTPUTS, ROWS_2) if ROWS_2 > 0 else (16, 16), tl.float32)
    second_1 = tl.zeros((OUTPUTS, ROWS_1) if HAS_SECOND else (16, 16), tl.float32)
    second_2 = tl.zeros((OUTPUTS, ROWS_2) if HAS_SECOND and ROWS_2 > 0 else (16, 16), tl.float32)
    for step in tl.range(0, tl.cdiv(columns, K), num_stages=STAGES):
        x_1 = tl.trans(load_rows(x, row_1, step * K, columns, K, EVEN, ALIGNED))
        if ROWS_2 > 0:
            x_2 = tl.trans(load_rows(x, row_2, step * K, columns, K, EVEN, ALIGNED))
        parts = weights_of_step(
            tiles[0], step, columns, CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, PAIRED, KB, EVEN, WARPS
        )  # fmt: skip
        first_1 = add_products(parts, x_1, first_1, not (HAS_SECOND and OVERLAP) and ROWS_2 == 0)
        if ROWS_2 > 0:
            first_2 = add_products(parts, x_2, first_2, not (HAS_SECOND and OVERLAP))
        if HAS_SECOND:
            parts = weights_of_step(
                tiles[1], step, columns, CODE, SCALE, MIN, TABLE, SIZES, IS_FLOAT, PAIRED, KB, EVEN, WARPS
            )  # fmt: skip
            second_1 = add_products(parts, x_1, second_1, ROWS_2 == 0)
            if ROWS_2 > 0:
                second_2 = add_products(parts, x_2, second_2, True)
    return (first_1, first_2), (second_1, second_2)
