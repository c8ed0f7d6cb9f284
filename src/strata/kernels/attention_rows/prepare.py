"""Heads of a window's rows normed, turned and put in their places on a GPU: one launch, a program a head of a row.

Knows what a layer projects and where it goes; knows no score. Heads are numbered in this order: queries, keys (each
with its value), the indexer's queries, the indexer's key.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_rows.arguments import (
    AttentionCells,
    AttentionLayer,
    PreparedQueries,
    ProjectedRows,
    RotationTables,
)
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.stored_cells import pointers, rotate, store_head
from strata.kernels.window_rows import WindowRows


@triton.jit
def partner_of(d, HALF: tl.constexpr):
    """The value that each value is turned with."""
    return tl.where(d < HALF, d + HALF, tl.where(d < 2 * HALF, d - HALF, d))


@triton.jit
def finish_head(
    x, partner, scale, eps, cos, sin, position, DIM: tl.constexpr, HALF: tl.constexpr, HAS_NORM: tl.constexpr
):  # fmt: skip
    """A head x [DIM] and its partners: by its root mean square, times `scale`, turned to `position`."""
    d = tl.arange(0, DIM)
    if HAS_NORM:
        mean = tl.sum(x * x, axis=0) * (1.0 / DIM)  # DIM is a power of two: exact
        root = tl.sqrt_rn(tl.zeros((DIM,), tl.float32) + (mean + eps))
        x = tl.div_rn(x, root) * tl.load(scale + d)
        partner = tl.div_rn(partner, root) * tl.load(scale + partner_of(d, HALF))
    is_turned = d < 2 * HALF
    at = position * HALF + d % HALF
    c = tl.load(cos + at, mask=is_turned, other=1.0)
    s = tl.load(sin + at, mask=is_turned, other=0.0)
    turned = tl.where(d < HALF, x * c - partner * s, x * c + partner * s)
    return tl.where(is_turned, turned, x)


@triton.jit
def head_at(
    source, scale, eps, cos, sin, position, DIM: tl.constexpr, HALF: tl.constexpr, HAS_NORM: tl.constexpr
):  # fmt: skip
    """The same of a projected head."""
    d = tl.arange(0, DIM)
    x, partner = tl.load(source + d), tl.load(source + partner_of(d, HALF))
    return finish_head(x, partner, scale, eps, cos, sin, position, DIM, HALF, HAS_NORM)


@triton.jit
def raw_keys(
    index, index_stride, raw, first_cell, row, position, first_position, cell, d, DIM: tl.constexpr
):  # fmt: skip
    """The raw key at `cell` of a row's slot, its values in the order d [DIM].

    Those of the window's own rows come from their projections: other programs are writing these cells now. index: the
    first row's raw key; first_cell: the slot's.
    """
    is_own = d < tl.where(cell >= first_position, DIM, 0)
    own = tl.load(index + (row - (position - cell)) * index_stride + d, mask=is_own, other=0.0)
    old = tl.load(raw + (first_cell + cell) * DIM + d, mask=d >= tl.where(cell >= first_position, DIM, 0), other=0.0)
    return tl.where(is_own, own, old)


@triton.jit
def pool_block(
    index, index_stride, raw, pooled, scale, eps, cos, sin, slot, cells, row, position, first_position,
    DIM: tl.constexpr, HALF: tl.constexpr, RATIO: tl.constexpr,
):  # fmt: skip
    """The key of the block that ends at `position`."""
    d = tl.arange(0, DIM)
    other = partner_of(d, HALF)
    x = tl.zeros((DIM,), tl.float32)
    partner = tl.zeros((DIM,), tl.float32)
    start = position + 1 - RATIO
    for offset in tl.static_range(RATIO):
        cell = start + offset
        x += raw_keys(index, index_stride, raw, slot * cells, row, position, first_position, cell, d, DIM)
        partner += raw_keys(index, index_stride, raw, slot * cells, row, position, first_position, cell, other, DIM)
    ratio = tl.full((DIM,), RATIO, tl.float32)
    mean, partner_mean = tl.div_rn(x, ratio), tl.div_rn(partner, ratio)
    key = finish_head(mean, partner_mean, scale, eps, cos, sin, start, DIM, HALF, True)
    at = (slot * (cells // RATIO) + start // RATIO) * DIM + d
    tl.store(pooled + at, key)


@triton.jit
def prepare_kernel(
    qkv, qkv_stride, index, index_stride, slots, positions, first_rows, cos, sin,
    keys, keys_scales, values, values_scales, table, held_keys, held_keys_scales, held_values, held_values_scales,
    raw, pooled,
    query_scale, key_scale, index_query_scale, index_key_scale, query_out, index_query_out, cells, eps, index_eps,
    softmax_scale,
    KEY_CODE: tl.constexpr, VALUE_CODE: tl.constexpr, ROTATES: tl.constexpr,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, STEP: tl.constexpr,
    HAS_QUERY_NORM: tl.constexpr, HAS_KEY_NORM: tl.constexpr, HALF: tl.constexpr,
    INDEX_HEADS: tl.constexpr, INDEX_DIM: tl.constexpr, RATIO: tl.constexpr, IS_PAGED: tl.constexpr,
):  # fmt: skip
    """grid (heads of all kinds, rows). STEP: from one query to the next; INDEX_HEADS 0: there is no indexer.

    ROTATES: queries are rotated as keys are. IS_PAGED: keys and values are also held in a pool, if their block is.
    """
    begin_dependent()
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    position = tl.load(positions + row)
    if slot >= 0:
        qkv_row = qkv + row * qkv_stride
        if head < QUERY_HEADS:
            query = head_at(
                qkv_row + head * STEP, query_scale, eps, cos, sin, position, DIM, HALF, HAS_QUERY_NORM
            )  # fmt: skip
            query = query * softmax_scale
            if ROTATES:
                query = rotate(query, 1, DIM)
            tl.store(query_out + (row * QUERY_HEADS + head) * DIM + tl.arange(0, DIM), query)
        elif head < QUERY_HEADS + KV_HEADS:
            kv_head = head - QUERY_HEADS
            source = qkv_row + QUERY_HEADS * STEP + kv_head * DIM
            stored = (slot * cells + position) * KV_HEADS + kv_head
            key = head_at(source, key_scale, eps, cos, sin, position, DIM, HALF, HAS_KEY_NORM)
            value = tl.load(source + KV_HEADS * DIM + tl.arange(0, DIM))
            store_head(keys, keys_scales, stored, key, KEY_CODE, DIM)
            store_head(values, values_scales, stored, value, VALUE_CODE, DIM)
            if IS_PAGED:
                place = tl.load(table + slot * (cells // RATIO) + position // RATIO).to(tl.int64)
                if place >= 0:
                    held = (place * RATIO + position % RATIO) * KV_HEADS + kv_head
                    store_head(held_keys, held_keys_scales, held, key, KEY_CODE, DIM)
                    store_head(held_values, held_values_scales, held, value, VALUE_CODE, DIM)
        elif head < QUERY_HEADS + KV_HEADS + INDEX_HEADS:
            index_head = head - (QUERY_HEADS + KV_HEADS)
            index_query = head_at(
                index + row * index_stride + index_head * INDEX_DIM, index_query_scale, index_eps, cos, sin, position,
                INDEX_DIM, HALF, True,
            )  # fmt: skip
            index_place = (row * INDEX_HEADS + index_head) * INDEX_DIM + tl.arange(0, INDEX_DIM)
            tl.store(index_query_out + index_place, index_query)
        else:
            first_key = index + INDEX_HEADS * INDEX_DIM
            own = tl.load(first_key + row * index_stride + tl.arange(0, INDEX_DIM))
            own_place = (slot * cells + position) * INDEX_DIM + tl.arange(0, INDEX_DIM)
            tl.store(raw + own_place, own)
            if (position + 1) % RATIO == 0:
                first_position = tl.load(positions + tl.load(first_rows + row))
                pool_block(
                    first_key, index_stride, raw, pooled, index_key_scale, index_eps, cos, sin, slot, cells, row,
                    position, first_position, INDEX_DIM, HALF, RATIO,
                )  # fmt: skip


def attention_prepare(
    projected: ProjectedRows,
    rows: WindowRows,
    rotation: RotationTables,
    cells: AttentionCells,
    layer: AttentionLayer,
    work: PreparedQueries,
) -> None:
    """See the package."""
    shape, vectors, indexer = layer.shape, layer.vectors, layer.shape.indexer
    unused = rotation.cos  # float32; stands where a layer without an indexer, or without norms, has no tensor
    index = unused if projected.index is None else projected.index
    scales = (vectors.query_scale, vectors.key_scale, vectors.index_query_scale, vectors.index_key_scale)
    index_query = unused if work.index_query is None else work.index_query
    heads = shape.query_heads + shape.kv_heads + (0 if indexer is None else indexer.heads + 1)
    pages, held = cells.pages, cells if cells.pages is None else cells.pages
    prepare_kernel[(heads, rows.count)](
        projected.qkv, projected.qkv.stride(0), index, index.stride(0), rows.slots, rows.positions, rows.first_rows,
        rotation.cos, rotation.sin, *pointers(cells.keys), *pointers(cells.values),
        rows.slots if pages is None else pages.table, *pointers(held.keys), *pointers(held.values),
        *(unused if part is None else part for part in (cells.raw, cells.pooled, *scales)),
        work.query, index_query, cells.count, shape.eps, 0.0 if indexer is None else indexer.eps,
        shape.head_dim**-0.5,
        KEY_CODE=cells.kind.keys.value, VALUE_CODE=cells.kind.values.value, ROTATES=cells.rotates(work.query),
        QUERY_HEADS=shape.query_heads, KV_HEADS=shape.kv_heads, DIM=shape.head_dim,
        STEP=shape.head_dim * (2 if shape.has_output_gate else 1),
        HAS_QUERY_NORM=vectors.query_scale is not None, HAS_KEY_NORM=vectors.key_scale is not None,
        HALF=rotation.half,
        INDEX_HEADS=0 if indexer is None else indexer.heads, INDEX_DIM=16 if indexer is None else indexer.head_dim,
        RATIO=1 if indexer is None else indexer.ratio, IS_PAGED=pages is not None,
        num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
