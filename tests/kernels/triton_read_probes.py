"""Kernels that show what single steps of the kernels of reads make. Knows no product."""
# mypy: allow-untyped-defs, no-check-untyped-defs

import triton
import triton.language as tl

from strata.kernels.read_products.pairs import scale_pairs
from strata.kernels.read_products.tile import as_it_is, load_rows, store_products
from strata.kernels.read_products.values import f32_parts
from strata.kernels.read_products.weights import load_ahead


@triton.jit
def rows_kernel(
    x, row, columns, out, K: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """out [ROWS, K]: columns K .. of the rows `row` of x; then stored as products are, transposed twice."""
    at = tl.arange(0, ROWS)
    loaded = load_rows(x, tl.load(row + at), K, columns, K, EVEN, ALIGNED)
    products = as_it_is(tl.trans(loaded.to(tl.float32)))
    store_products(out, K, at, at >= 0, tl.arange(0, K), K, products, False)


@triton.jit
def ahead_kernel(source, out, count, P: tl.constexpr, S: tl.constexpr, EVEN: tl.constexpr, WARPS: tl.constexpr):
    """out [P, S, 16]: what `load_ahead` makes of numbers that lie so, of which `count` along S exist."""
    number = tl.arange(0, S)[None, :, None]
    at = tl.arange(0, P)[:, None, None] * (S * 16) + number * 16 + tl.arange(0, 16)[None, None, :]
    tl.store(out + at, load_ahead(source + at, number < count, EVEN, 2, WARPS))


@triton.jit
def parts_kernel(bits, out, N: tl.constexpr):
    """out [3, N]: the parts of float32 values, given as int32 bits, as bf16."""
    at = tl.arange(0, N)
    parts = f32_parts(tl.load(bits + at))
    for part in tl.static_range(3):
        tl.store(out + part * N + at, parts[part])


@triton.jit
def pairs_kernel(bits, out, M: tl.constexpr, KB: tl.constexpr):
    """out int32 [2, M, KB]: the first eight bits and the rest of scales [M, KB], given as int32 bits, as pairs."""
    at = tl.arange(0, M)[:, None] * KB + tl.arange(0, KB)[None, :]
    halves = scale_pairs(tl.load(bits + at).to(tl.float32, bitcast=True), KB, True)
    tl.store(out + at, tl.reshape(halves[0][0], (M, KB)))
    tl.store(out + M * KB + at, tl.reshape(halves[0][1], (M, KB)))
