"""Attention of a read's rows to every cell up to their own on a GPU: a program a tile of rows and a query head.

Cells pass in tiles that begin at absolute multiples, so a row's bits depend on neither its tile nor the read's start.
Knows cells in bfloat16; knows no indexer.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_read.softmax import finish, next_step


@triton.jit(do_not_specialize=["qkv_stride", "rows", "position"])
def dense_kernel(
    query, keys, values, qkv, qkv_stride, out, rows, position,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    IS_GATED: tl.constexpr, ROWS: tl.constexpr, CELLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """query [rows, QUERY_HEADS, DIM], keys and values [cells, KV_HEADS, DIM] -> out [rows, QUERY_HEADS, DIM].

    grid (QUERY_HEADS, tiles of rows), the last rows first: they take longest. position: of row 0.
    """
    head, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    row, d = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    is_row = (row < rows)[:, None]
    at = (row * QUERY_HEADS + head)[:, None] * DIM + d[None, :]
    queries = tl.load(query + at, mask=is_row, other=0.0)
    column = head // GROUP * DIM + d[None, :]
    seen = position + tl.minimum((tile + 1) * ROWS, rows)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, DIM), tl.float32)
    for first in tl.range(0, seen, CELLS, num_stages=STAGES):
        cell = first + tl.arange(0, CELLS)
        places = cell[:, None] * (KV_HEADS * DIM) + column
        key = tl.load(keys + places, mask=(cell < seen)[:, None], other=0.0)
        value = tl.load(values + places, mask=(cell < seen)[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(key))
        scores = tl.where(cell[None, :] <= position + row[:, None], scores, float("-inf"))
        peak, total, sums = next_step(scores, value, peak, total, sums)
    of_rows = qkv + row.to(tl.int64)[:, None] * qkv_stride
    heads = tl.full((ROWS,), 0, tl.int32) + head
    finish(sums, total, of_rows, heads, is_row, out, at, DIM, IS_GATED)
