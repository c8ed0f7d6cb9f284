"""Attention of a window's rows as it is defined, in torch on any device. Knows one layer; reads positions on the host.

Choices are exact, sums are within rounding of the kernels'.
"""

import torch

from strata.kernels.attention_rows.arguments import (
    AttentionCells,
    AttentionLayer,
    AttentionRowsShape,
    AttentionWork,
    IndexerRowsShape,
    PreparedQueries,
    ProjectedRows,
    RotationTables,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.cell_codes import CellRows, decode, encode, rotate


def attention_prepare(
    projected: ProjectedRows,
    rows: WindowRows,
    rotation: RotationTables,
    cells: AttentionCells,
    layer: AttentionLayer,
    work: PreparedQueries,
) -> None:
    """See the package."""
    shape, vectors = layer.shape, layer.vectors
    used = torch.nonzero(rows.slots >= 0).flatten()
    slots, positions = rows.slots[used].long(), rows.positions[used].long()
    kv_width = shape.kv_heads * shape.head_dim
    packed_query, key, value = projected.qkv[used].split(
        (shape.projected_width - 2 * kv_width, kv_width, kv_width), dim=1
    )
    query = packed_query.unflatten(1, (shape.query_heads, -1))[..., : shape.head_dim]
    query = _turn(_norm(query, vectors.query_scale, shape.eps), positions, rotation)
    key = _norm(key.unflatten(1, (shape.kv_heads, -1)), vectors.key_scale, shape.eps)
    query = query * shape.head_dim**-0.5
    work.query[used] = (rotate(query) if cells.rotates(work.query) else query).to(work.query.dtype)
    encoded_key = encode(cells.kind.keys, _turn(key, positions, rotation))
    _store(slots, positions, encoded_key, encode(cells.kind.values, value.unflatten(1, (shape.kv_heads, -1))), cells)
    if shape.indexer is None:
        return
    assert projected.index is not None and work.index_query is not None and cells.raw is not None
    heads = projected.index[used].unflatten(1, (shape.indexer.heads + 1, -1))
    index_query = _norm(heads[:, :-1], vectors.index_query_scale, shape.indexer.eps)
    work.index_query[used] = _turn(index_query, positions, rotation)
    cells.raw[slots, positions] = heads[:, -1]
    _pool_completed(slots, positions, rotation, cells, layer)


def _store(slots: torch.Tensor, positions: torch.Tensor, key: CellRows, value: CellRows, cells: AttentionCells) -> None:
    """Encoded heads [rows, kv_heads] into their cells; into the pool too, where there is one and it has their block."""
    home, pages = cells.keys.codes.device, cells.pages
    for found, stored in ((key, cells.keys), (value, cells.values)):
        stored[slots.to(home), positions.to(home)] = CellRows(*(part.to(home) for part in found.tensors))
    if pages is None:
        return
    places = pages.table[slots, positions // pages.ratio].long()
    is_held = places >= 0
    at = places[is_held] * pages.ratio + positions[is_held] % pages.ratio
    for found, held in ((key, pages.keys), (value, pages.values)):
        held[at] = found[is_held]


def _pool_completed(
    slots: torch.Tensor,
    positions: torch.Tensor,
    rotation: RotationTables,
    cells: AttentionCells,
    layer: AttentionLayer,
) -> None:
    """The keys of the blocks that the rows complete, whose raw keys are all written."""
    indexer = layer.shape.indexer
    assert indexer is not None and cells.raw is not None and cells.pooled is not None
    completes = (positions + 1) % indexer.ratio == 0
    slots, firsts = slots[completes], positions[completes] + 1 - indexer.ratio
    block_cells = firsts[:, None] + torch.arange(indexer.ratio, device=firsts.device)
    mean = cells.raw[slots[:, None], block_cells].mean(dim=1, keepdim=True)  # [completed, one head, head_dim]
    pooled = _turn(_norm(mean, layer.vectors.index_key_scale, indexer.eps), firsts, rotation)
    cells.pooled[slots, firsts // indexer.ratio] = pooled[:, 0]


def _norm(heads: torch.Tensor, scale: torch.Tensor | None, eps: float) -> torch.Tensor:
    """heads [n, heads, head_dim], each by its root mean square, times `scale`; without a scale as they are."""
    if scale is None:
        return heads
    return heads * torch.rsqrt(heads.square().mean(dim=-1, keepdim=True) + eps) * scale


def _turn(heads: torch.Tensor, positions: torch.Tensor, rotation: RotationTables) -> torch.Tensor:
    """heads [n, heads, head_dim]: values i and half + i are a pair that is turned; the rest stays."""
    half = rotation.half
    cos, sin = rotation.cos[positions][:, None], rotation.sin[positions][:, None]
    first, second, rest = heads.split((half, half, heads.shape[-1] - 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def attention_choose(rows: WindowRows, cells: AttentionCells, shape: AttentionRowsShape, work: AttentionWork) -> None:
    """See the package."""
    assert shape.indexer is not None and cells.pooled is not None
    assert work.choice is not None and work.index_query is not None
    work.choice.counts.zero_()
    for row, (slot, position) in enumerate(zip(rows.slots.tolist(), rows.positions.tolist(), strict=True)):
        if slot >= 0 and position >= shape.indexer.dense_positions:
            complete = (position + 1) // shape.indexer.ratio
            scores = block_scores(work.index_query[row], cells.pooled[slot, :complete], shape.indexer)
            work.choice.scores[row, :complete] = scores
            work.choice.chosen[row] = best_blocks(scores, shape.indexer.top_blocks)
            work.choice.counts[row] = shape.indexer.top_blocks


def block_scores(query: torch.Tensor, block_keys: torch.Tensor, indexer: IndexerRowsShape) -> torch.Tensor:
    """query [heads, head_dim], block_keys [blocks, head_dim] -> [blocks], at least 0; NaN products count as 0."""
    products = (block_keys[:, None] * query).sum(dim=-1)  # [blocks, heads]
    total = torch.where(products > 0, products, 0.0).sum(dim=-1)
    return total / torch.full_like(total, indexer.head_dim**0.5)


def best_blocks(scores: torch.Tensor, count: int) -> torch.Tensor:
    """scores float32 [blocks] from 0 on -> the `count` best in rising order, int32; the lower first among equals."""
    order = torch.sort(scores, descending=True, stable=True).indices
    return order[:count].sort().values.int()


def attention_attend(
    projected: ProjectedRows,
    rows: WindowRows,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionWork,
    out: RowsOut,
) -> None:
    """See the package. Writes `out.plain` alone."""
    assert out.plain is not None
    counts = [0] * rows.count if work.choice is None else work.choice.counts.tolist()
    out.plain.zero_()
    for row, (slot, position) in enumerate(zip(rows.slots.tolist(), rows.positions.tolist(), strict=True)):
        if slot < 0:
            continue
        seen = torch.arange(position + 1, device=work.query.device)
        if counts[row]:
            assert shape.indexer is not None and work.choice is not None
            seen = chosen_cells(work.choice.chosen[row], position, shape.indexer)
        key, value = _stored_at(slot, seen, cells)
        keys, values = (
            decode(code, side, shape.head_dim).transpose(0, 1)
            for code, side in ((cells.kind.keys, key), (cells.kind.values, value))
        )  # [kv_heads, seen, head_dim]
        query = work.query[row].view(shape.kv_heads, shape.group, shape.head_dim)
        shares = torch.softmax(query @ keys.transpose(1, 2), dim=-1)  # [kv_heads, group, seen]
        mixed = shares @ values
        out.plain[row] = (rotate(mixed) if cells.kind.values.is_rotated else mixed).flatten()
    if shape.has_output_gate:
        used = rows.slots >= 0
        heads = projected.qkv[used, : 2 * shape.query_width].unflatten(1, (shape.query_heads, 2, shape.head_dim))
        out.plain[used] *= torch.sigmoid(heads[:, :, 1].flatten(1))


def _stored_at(slot: int, seen: torch.Tensor, cells: AttentionCells) -> tuple[CellRows, CellRows]:
    """Keys and values at cells int64 [n] of a slot, from the pool where there is one: heads [n, kv_heads]."""
    pages = cells.pages
    if pages is None:
        return cells.keys[slot, seen], cells.values[slot, seen]
    at = pages.table[slot, seen // pages.ratio].long() * pages.ratio + seen % pages.ratio
    return pages.keys[at], pages.values[at]


def chosen_cells(chosen: torch.Tensor, position: int, indexer: IndexerRowsShape) -> torch.Tensor:
    """chosen [top_blocks] -> the cells of these blocks, then those after the last complete block, rising."""
    within = torch.arange(indexer.ratio, device=chosen.device)
    first_open = (position + 1) // indexer.ratio * indexer.ratio
    tail = torch.arange(first_open, position + 1, device=chosen.device)
    return torch.cat(((chosen.long()[:, None] * indexer.ratio + within).flatten(), tail))
