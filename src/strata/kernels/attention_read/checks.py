"""Refusing what the attention of a read would misread: shapes, types, places. Knows no arithmetic."""

import torch

from strata.kernels.attention_read.arguments import (
    GROUP_BLOCKS,
    SCORE_STEP,
    AttentionReadWork,
    ReadChoice,
)
from strata.kernels.attention_rows.arguments import (
    MOST_ELEMENTS,
    AttentionCells,
    AttentionRowsShape,
    IndexerRowsShape,
    ProjectedRows,
)
from strata.kernels.attention_rows.checks import check_cells, check_given, check_rows
from strata.kernels.checks import check_tensor

HALF = torch.bfloat16


def check_choose(
    position: int, slot: int, cells: AttentionCells, shape: AttentionRowsShape, work: AttentionReadWork
) -> None:
    """Raise ValueError unless `read_choose` can take these."""
    if shape.indexer is None:
        raise ValueError("shape.indexer is None: a layer without an indexer has no blocks to choose")
    _check_place(position, slot, cells, work)
    check_cells(cells, shape)
    indexer, choice = shape.indexer, _choice_of(work)
    check_given("work.index_query", work.index_query, (work.rows, indexer.heads, indexer.head_dim))
    blocks = cells.count // indexer.ratio
    check_tensor("work.choice.query_parts", choice.query_parts, (2, work.rows, indexer.heads, indexer.head_dim), HALF)
    check_tensor("work.choice.block_parts", choice.block_parts, (2, blocks, indexer.head_dim), HALF)
    at_once, step = choice.scores.shape
    if step < blocks or step % SCORE_STEP:
        raise ValueError(f"rows of work.choice.scores are a multiple of {SCORE_STEP} from {blocks} on, not {step}")
    check_tensor("work.choice.scores", choice.scores, (at_once, step))
    check_tensor("work.choice.greatest", choice.greatest, (at_once, step // GROUP_BLOCKS))
    check_tensor("work.choice.groups", choice.groups, (at_once, indexer.top_blocks), torch.int32)
    _check_chosen(choice, work.rows, indexer)


def check_attend(
    projected: ProjectedRows,
    position: int,
    slot: int,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionReadWork,
    out: torch.Tensor,
) -> None:
    """Raise ValueError unless `read_attend` can take these."""
    _check_place(position, slot, cells, work)
    check_cells(cells, shape)
    check_rows("projected.qkv", projected.qkv, work.rows, shape.projected_width)
    check_tensor("work.query", work.query, (work.rows, shape.query_heads, shape.head_dim), HALF)
    if work.query.numel() >= MOST_ELEMENTS:
        raise ValueError(f"{work.rows} rows of {shape.query_width} are too many for a read: give fewer at once")
    if not cells.are_multiplied_in_place:
        full = (cells.count, shape.kv_heads, shape.head_dim)
        check_given("work.keys", work.keys, full, HALF)
        check_given("work.values", work.values, full, HALF)
    if shape.indexer is not None:
        _check_chosen(_choice_of(work), work.rows, shape.indexer)
    check_tensor("out", out, (work.rows, shape.query_width), HALF)


def _check_place(position: int, slot: int, cells: AttentionCells, work: AttentionReadWork) -> None:
    if not 0 <= slot < cells.slots:
        raise ValueError(f"slot must be one of 0 to {cells.slots - 1}, not {slot}")
    if not 0 <= position <= cells.count - work.rows:
        raise ValueError(
            f"position must be from 0 to {cells.count - work.rows}, where the last of {work.rows} rows has a cell, "
            f"not {position}"
        )


def _choice_of(work: AttentionReadWork) -> ReadChoice:
    if work.choice is None:
        raise ValueError("work.choice is None: a layer with an indexer needs room for the chosen blocks")
    return work.choice


def _check_chosen(choice: ReadChoice, rows: int, indexer: IndexerRowsShape) -> None:
    check_tensor("work.choice.chosen", choice.chosen, (rows, indexer.top_blocks), torch.int32)
