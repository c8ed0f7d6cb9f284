"""Attention of a read's rows as it is defined, in torch on any device: row by row, so that no row sees another.

Knows one layer. Choices are exact, sums are within rounding of the kernels', which round softmax's shares too.
"""

import torch

from strata.kernels.attention_read.arguments import AttentionReadWork, dense_rows
from strata.kernels.attention_rows.arguments import AttentionCells, AttentionRowsShape, ProjectedRows
from strata.kernels.attention_rows.reference import best_blocks, block_scores, chosen_cells
from strata.quant.cell_codes import CellCode, CellRows, decode, rotate


def read_choose(
    position: int, slot: int, cells: AttentionCells, shape: AttentionRowsShape, work: AttentionReadWork
) -> None:
    """See the package. Writes `chosen` alone."""
    indexer, choice = shape.indexer, work.choice
    assert indexer is not None and choice is not None and cells.pooled is not None and work.index_query is not None
    for row in range(dense_rows(work.rows, position, shape), work.rows):
        complete = (position + row + 1) // indexer.ratio
        scores = block_scores(work.index_query[row], cells.pooled[slot, :complete], indexer)
        choice.chosen[row] = best_blocks(scores, indexer.top_blocks)


def read_attend(
    projected: ProjectedRows,
    position: int,
    slot: int,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionReadWork,
    out: torch.Tensor,
) -> None:
    """See the package."""
    dense = dense_rows(work.rows, position, shape)
    keys, values = (
        multiplied(code, side[slot, : position + work.rows], shape.head_dim).to(out.device).float().transpose(0, 1)
        for code, side in ((cells.kind.keys, cells.keys), (cells.kind.values, cells.values))
    )  # [kv_heads, cells, head_dim]
    for row in range(work.rows):
        own = position + row
        seen_keys, seen_values = keys[:, : own + 1], values[:, : own + 1]
        if row >= dense:
            assert shape.indexer is not None and work.choice is not None
            seen = chosen_cells(work.choice.chosen[row], own, shape.indexer)
            seen_keys, seen_values = keys[:, seen], values[:, seen]
        query = work.query[row].float().view(shape.kv_heads, shape.group, shape.head_dim)
        shares = torch.softmax(query @ seen_keys.transpose(1, 2), dim=-1)  # [kv_heads, group, seen]
        attended = (shares @ seen_values).flatten()
        if shape.has_output_gate:
            heads = projected.qkv[row, : 2 * shape.query_width].unflatten(0, (shape.query_heads, 2, shape.head_dim))
            attended = attended * torch.sigmoid(heads[:, 1].flatten())
        out[row] = attended.bfloat16()


def multiplied(code: CellCode, rows: CellRows, head_dim: int) -> torch.Tensor:
    """bfloat16 [..., head_dim]: stored heads as the matrix units of a read multiply them, rotated back."""
    values = decode(code, rows, head_dim)
    return (rotate(values) if code.is_rotated else values).bfloat16()
