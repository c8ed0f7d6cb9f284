"""Refusing what the attention kernels would misread: shapes, types, order in memory. Knows no arithmetic."""

import torch

from strata.kernels.attention_rows.arguments import (
    MOST_BLOCKS,
    MOST_ELEMENTS,
    AttentionCells,
    AttentionLayer,
    AttentionRowsShape,
    AttentionWork,
    PreparedQueries,
    ProjectedRows,
    RotationTables,
)
from strata.kernels.attention_rows.parts import most_parts
from strata.kernels.cell_pages.arguments import CellPages, sides
from strata.kernels.checks import check_rows_out, check_tensor, plain_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.kernels.window_rows import WindowRows
from strata.quant.cell_codes import check_rows as check_stored


def check_prepare(
    projected: ProjectedRows,
    rows: WindowRows,
    rotation: RotationTables,
    cells: AttentionCells,
    layer: AttentionLayer,
    work: PreparedQueries,
) -> None:
    """Raise ValueError unless `attention_prepare` can take these."""
    shape, vectors = layer.shape, layer.vectors
    check_rows("projected.qkv", projected.qkv, rows.count, shape.projected_width)
    check_cells(cells, shape)
    if work.query.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"work.query must be float32, or bfloat16 for a read, not {work.query.dtype}")
    check_tensor("work.query", work.query, (rows.count, shape.query_heads, shape.head_dim), work.query.dtype)
    for name in ("query_scale", "key_scale"):
        check_tensor(f"vectors.{name}", getattr(vectors, name), (shape.head_dim,))
    least_dim = shape.head_dim
    if shape.indexer is not None:
        indexer = shape.indexer
        least_dim = min(least_dim, indexer.head_dim)
        for name in ("index_query_scale", "index_key_scale"):
            check_given(f"vectors.{name}", getattr(vectors, name), (indexer.head_dim,))
        check_given("work.index_query", work.index_query, (rows.count, indexer.heads, indexer.head_dim))
        check_rows("projected.index", projected.index, rows.count, indexer.width)
    check_tensor("rotation.cos", rotation.cos, (rotation.cos.shape[0], rotation.half))
    check_tensor("rotation.sin", rotation.sin, tuple(rotation.cos.shape))
    if rotation.cos.shape[0] < cells.count:
        raise ValueError(f"rotation has {rotation.cos.shape[0]} positions; the slots' {cells.count} cells need as many")
    if not 0 < 2 * rotation.half <= least_dim:
        raise ValueError(f"rotation turns {2 * rotation.half} values of a head; it must be from 2 to {least_dim}")


def check_choose(rows: WindowRows, cells: AttentionCells, shape: AttentionRowsShape, work: AttentionWork) -> None:
    """Raise ValueError unless `attention_choose` can take these."""
    if shape.indexer is None:
        raise ValueError("shape.indexer is None: a layer without an indexer has no blocks to choose")
    check_cells(cells, shape)
    indexer = shape.indexer
    check_given("work.index_query", work.index_query, (rows.count, indexer.heads, indexer.head_dim))
    _check_choice(rows, cells, shape, work)


def check_attend(
    projected: ProjectedRows,
    rows: WindowRows,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionWork,
    out: RowsOut,
) -> None:
    """Raise ValueError unless `attention_attend` can take these."""
    check_rows("projected.qkv", projected.qkv, rows.count, shape.projected_width)
    check_cells(cells, shape)
    if shape.indexer is not None:
        _check_choice(rows, cells, shape, work)
    sums = (rows.count, shape.query_heads, work.parts)
    check_tensor("work.query", work.query, (rows.count, shape.query_heads, shape.head_dim))
    check_tensor("work.peaks", work.peaks, sums)
    check_tensor("work.totals", work.totals, sums)
    check_tensor("work.mixed", work.mixed, (*sums, shape.head_dim))
    needed = most_parts(shape.most_seen(cells.count))
    if work.parts < needed:
        raise ValueError(f"work has room for {work.parts} parts of a row; slots of {cells.count} cells need {needed}")
    check_rows_out("out", out, rows.count, shape.query_width)
    if takes_reference(work.query):
        plain_rows("out", out)


def _check_choice(rows: WindowRows, cells: AttentionCells, shape: AttentionRowsShape, work: AttentionWork) -> None:
    assert shape.indexer is not None
    if work.choice is None:
        raise ValueError("work.choice is None: a layer with an indexer needs room for the chosen blocks")
    choice, blocks = work.choice, cells.count // shape.indexer.ratio
    if blocks >= MOST_BLOCKS:
        raise ValueError(f"{cells.count} cells are {blocks} blocks, too many for a slot: fewer than {MOST_BLOCKS}")
    check_tensor("work.choice.scores", choice.scores, (rows.count, blocks))
    check_tensor("work.choice.chosen", choice.chosen, (rows.count, shape.indexer.top_blocks), torch.int32)
    check_tensor("work.choice.counts", choice.counts, (rows.count,), torch.int32)
    check_tensor("work.choice.arrivals", choice.arrivals, (rows.count,), torch.int32)


def check_cells(cells: AttentionCells, shape: AttentionRowsShape) -> None:
    """Raise ValueError unless the cells are those of a layer of this shape."""
    slots, count = cells.slots, cells.count
    heads = (slots, count, shape.kv_heads)
    for name, side, code in (("keys", cells.keys, cells.kind.keys), ("values", cells.values, cells.kind.values)):
        check_stored(f"cells.{name}", code, side, shape.head_dim)
        check_tensor(f"cells.{name}.codes", side.codes, (*heads, code.code_columns(shape.head_dim)), code.dtype)
        check_tensor(f"cells.{name}.scales", side.scales, (*heads, code.groups(shape.head_dim)), torch.float16)
    if shape.indexer is not None:
        blocks, dim = count // shape.indexer.ratio, shape.indexer.head_dim
        check_given("cells.raw", cells.raw, (slots, count, dim))
        check_given("cells.pooled", cells.pooled, (slots, blocks, dim))
    if count * shape.kv_heads * shape.head_dim >= MOST_ELEMENTS:
        raise ValueError(f"{count} cells of {shape.kv_heads} x {shape.head_dim} are too many for a slot: fewer cells")
    if cells.pages is not None:
        _check_pages(cells, cells.pages, shape)


def _check_pages(cells: AttentionCells, pages: CellPages, shape: AttentionRowsShape) -> None:
    if shape.indexer is None or pages.ratio != shape.indexer.ratio:
        raise ValueError(f"cells.pages has blocks of {pages.ratio} cells: they must be an indexer's")
    check_tensor("cells.pages.table", pages.table, (cells.slots, cells.count // pages.ratio), torch.int32)
    held = pages.places * pages.ratio
    for side, stored in zip(sides(pages), sides(cells), strict=True):
        check_tensor("cells.pages.keys and values", side, (held, *stored.shape[2:]), stored.dtype)
    if held * shape.kv_heads * shape.head_dim >= MOST_ELEMENTS:
        raise ValueError(f"a pool of {held} cells of {shape.kv_heads} x {shape.head_dim} is too large: fewer cells")


def check_given(
    name: str, tensor: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    """As `check_tensor`, but that None is refused too."""
    if tensor is None:
        raise ValueError(f"{name} is None; it must be {dtype} {list(shape)}")
    check_tensor(name, tensor, shape, dtype)


def check_rows(name: str, tensor: torch.Tensor | None, rows: int, columns: int) -> None:
    """Rows whose columns lie side by side; the rows may be parts of longer ones."""
    wanted = f"float32 [{rows}, {columns}] with its columns side by side"
    if tensor is None:
        raise ValueError(f"{name} is None; it must be {wanted}")
    if tensor.shape != (rows, columns) or tensor.dtype != torch.float32 or tensor.stride(1) != 1:
        raise ValueError(f"{name} must be {wanted}, not {tensor.dtype} {list(tensor.shape)}, strides {tensor.stride()}")
