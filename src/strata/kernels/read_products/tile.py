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
def multiply_tile(
    tiles, x, row_1, row_2, columns, CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, TABLE: tl.constexpr,
    SIZES: tl.constexpr, IS_FLOAT: tl.constexpr, PAIRED: tl.constexpr, ROWS_1: tl.constexpr, ROWS_2: tl.constexpr,
    KB: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr, STAGES: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Products of P tiles and two groups of rows: float32 [P * 16, ROWS_1] and [P * 16, ROWS_2] (16 x 16 of none).

    tiles: of `tiles_of`; row_1 int32 [ROWS_1]: numbers of rows of x bf16 [.., columns]. Weights are decoded once for
    both groups, and those of a turn's STEPS before its first product: the compiler then decodes each step's while the
    one before is multiplied.
    """
    K: tl.constexpr = KB * 32
    OUTPUTS: tl.constexpr = tiles[0].shape[0] * 16
    products_1 = tl.zeros((OUTPUTS, ROWS_1), tl.float32)
    products_2 = tl.zeros((OUTPUTS, ROWS_2) if ROWS_2 > 0 else (16, 16), tl.float32)
    for turn in tl.range(0, tl.cdiv(columns, K * STEPS), num_stages=STAGES):
        weights = ()
        for step in tl.static_range(STEPS):
            at = turn * STEPS + step
            if IS_FLOAT:
                parts = float_weights(tiles, at, columns, CODE, SIZES, PAIRED, KB, EVEN)
            else:
                parts = (
                    integer_weights(tiles, at, columns, CODE, SCALE, MIN, TABLE, SIZES, PAIRED, KB, EVEN, WARPS),
                )  # fmt: skip
            weights += (parts,)
        for step in tl.static_range(STEPS):
            at = (turn * STEPS + step) * K
            x_1 = tl.trans(load_rows(x, row_1, at, columns, K, EVEN, ALIGNED))
            for part in tl.static_range(len(weights[step])):
                products_1 = as_it_is(tl.dot(weights[step][part], x_1, products_1))
            if ROWS_2 > 0:
                x_2 = tl.trans(load_rows(x, row_2, at, columns, K, EVEN, ALIGNED))
                for part in tl.static_range(len(weights[step])):
                    products_2 = as_it_is(tl.dot(weights[step][part], x_2, products_2))
    return products_1, products_2
