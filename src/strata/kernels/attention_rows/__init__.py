"""Attention of a window's rows over the cells of their slots: checks, and chooses torch's definition or Triton.

Knows no arithmetic. One layer is `attention_prepare`, with an indexer `attention_choose`, and `attention_attend`.
"""

from strata.kernels.attention_rows.arguments import (
    AttentionCells,
    AttentionLayer,
    AttentionRowsShape,
    AttentionVectors,
    AttentionWork,
    BlockChoice,
    IndexerRowsShape,
    PreparedQueries,
    ProjectedRows,
    RotationTables,
    rotation_table,
)
from strata.kernels.attention_rows.checks import check_attend, check_choose, check_prepare
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.kernels.window_rows import WindowRows

__all__ = [
    "AttentionCells",
    "AttentionLayer",
    "AttentionRowsShape",
    "AttentionVectors",
    "AttentionWork",
    "BlockChoice",
    "IndexerRowsShape",
    "PreparedQueries",
    "ProjectedRows",
    "RotationTables",
    "attention_attend",
    "attention_choose",
    "attention_prepare",
    "rotation_table",
]


def attention_prepare(
    projected: ProjectedRows,
    rows: WindowRows,
    rotation: RotationTables,
    cells: AttentionCells,
    layer: AttentionLayer,
    work: PreparedQueries,
) -> None:
    """Norm and turn the heads of every used row: queries into `work`, keys and values into the row's own cell.

    With an indexer also its queries, the raw key into the row's cell, and the key of the block that the row completes:
    the mean of the block's raw keys, normed, turned to the block's first position. Positions are below the number of
    cells and of turns. Raises ValueError for other shapes or types.
    """
    check_prepare(projected, rows, rotation, cells, layer, work)
    if takes_reference(work.query):
        from strata.kernels.attention_rows.reference import attention_prepare as by_definition

        by_definition(projected, rows, rotation, cells, layer, work)
    else:
        from strata.kernels.attention_rows.triton import attention_prepare as by_kernels

        by_kernels(projected, rows, rotation, cells, layer, work)


def attention_choose(rows: WindowRows, cells: AttentionCells, shape: AttentionRowsShape, work: AttentionWork) -> None:
    """The blocks that each row attends to, into `work.choice`; after `attention_prepare`.

    A complete block's score is the sum of relu(query . key) over the indexer's heads / sqrt(head_dim). A row at or
    beyond `dense_positions` gets exactly the `top_blocks` best, the lower one first among equals, whatever the scores
    are; any other row gets the count 0. Raises ValueError for other shapes or types, or a layer without an indexer.
    """
    check_choose(rows, cells, shape, work)
    if takes_reference(work.query):
        from strata.kernels.attention_rows.reference import attention_choose as by_definition

        by_definition(rows, cells, shape, work)
    else:
        from strata.kernels.attention_rows.triton import attention_choose as by_kernels

        by_kernels(rows, cells, shape, work)


def attention_attend(
    projected: ProjectedRows,
    rows: WindowRows,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionWork,
    out: RowsOut,
) -> None:
    """Each row's attention over its cells, times the sigmoid of its gate, into `out` [R, query_heads * head_dim].

    Cells are those up to the row's own, or the chosen blocks' and those after the last complete block. Rows that are
    unused become zeros. Raises ValueError for other shapes or types.
    """
    check_attend(projected, rows, cells, shape, work, out)
    if takes_reference(work.query):
        from strata.kernels.attention_rows.reference import attention_attend as by_definition

        by_definition(projected, rows, cells, shape, work, out)
    else:
        from strata.kernels.attention_rows.triton import attention_attend as by_kernels

        by_kernels(projected, rows, cells, shape, work, out)
