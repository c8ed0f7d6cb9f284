"""Attention of a read's rows to their chosen blocks and open tail on a GPU: a program a row and key head.

The heads that share a key head are the rows of its products; cells pass in rising order, so many a step. Knows cells
in bfloat16; knows no choice.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_read.softmax import finish, next_step
from strata.kernels.attention_rows.attend import cell_numbers


@triton.jit(do_not_specialize=["qkv_stride", "first_row", "position"])
def gathered_kernel(
    query, keys, values, chosen, qkv, qkv_stride, out, first_row, position,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr,
    RATIO: tl.constexpr, TOP: tl.constexpr, IS_GATED: tl.constexpr, CELLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """query [rows, QUERY_HEADS, DIM], keys and values [cells, KV_HEADS, DIM] -> out [rows, QUERY_HEADS, DIM].

    grid (rows from `first_row` on, KV_HEADS). position: of row 0. PADDED: rows of the products.
    """
    row, kv_head = first_row + tl.program_id(0), tl.program_id(1)
    own = position + row
    budget: tl.constexpr = TOP * RATIO
    seen = budget + (own + 1) % RATIO
    member, d = tl.arange(0, PADDED), tl.arange(0, DIM)
    head, is_member = kv_head * GROUP + member, (member < GROUP)[:, None]
    at = (row * QUERY_HEADS + head)[:, None] * DIM + d[None, :]
    queries = tl.load(query + at, mask=is_member, other=0.0)
    row_chosen, column = chosen + row * TOP, kv_head * DIM + d[None, :]
    peak = tl.full((PADDED,), float("-inf"), tl.float32)
    total = tl.zeros((PADDED,), tl.float32)
    sums = tl.zeros((PADDED, DIM), tl.float32)
    for first in tl.range(0, seen, CELLS, num_stages=STAGES):
        i = first + tl.arange(0, CELLS)
        cell = cell_numbers(i, seen, budget, own, row_chosen, True, RATIO)
        places = cell[:, None] * (KV_HEADS * DIM) + column
        key = tl.load(keys + places, mask=(i < seen)[:, None], other=0.0)
        value = tl.load(values + places, mask=(i < seen)[:, None], other=0.0)
        scores = tl.where((i < seen)[None, :], tl.dot(queries, tl.trans(key)), float("-inf"))
        peak, total, sums = next_step(scores, value, peak, total, sums)
    finish(sums, total, qkv + row.to(tl.int64) * qkv_stride, head, is_member, out, at, DIM, IS_GATED)
