"""The attention of a read on a GPU: what is launched. Knows no arithmetic.

parts       values                     index queries and block keys as two bfloat16
multiplied  heads, keys and values     stored cells as bfloat16, where they are not
scores      rows at once x blocks      \\ again and again, until all rows have chosen
select      rows at once               /
dense       tiles of rows, heads       rows that see every cell
gathered    rows, key heads            the others
"""

import torch
import triton

from strata.kernels.attention_read.arguments import GROUP_BLOCKS, AttentionReadWork, dense_rows
from strata.kernels.attention_read.decoding import HEADS_AT_ONCE, multiplied_kernel
from strata.kernels.attention_read.dense import dense_kernel
from strata.kernels.attention_read.gathered import gathered_kernel
from strata.kernels.attention_read.launches import AttentionReadLaunch, ScoreLaunch, SelectLaunch, launch_of
from strata.kernels.attention_read.scores import VALUES_AT_ONCE, parts_kernel, scores_kernel
from strata.kernels.attention_read.select import select_kernel
from strata.kernels.attention_rows.arguments import AttentionCells, AttentionRowsShape, ProjectedRows
from strata.kernels.stored_cells import pointers


def read_choose(
    position: int,
    slot: int,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionReadWork,
    launch: AttentionReadLaunch | None = None,
) -> None:
    """See the package."""
    indexer, choice = shape.indexer, work.choice
    assert indexer is not None and choice is not None and cells.pooled is not None and work.index_query is not None
    launch, dense = launch or launch_of(work.query.device, shape), dense_rows(work.rows, position, shape)
    if dense == work.rows:
        return
    make_parts(work.index_query, choice.query_parts)
    make_parts(cells.pooled[slot, : (position + work.rows) // indexer.ratio], choice.block_parts)
    for first in range(dense, work.rows, choice.rows_at_once):
        rows = min(choice.rows_at_once, work.rows - first)
        score_rows(first, rows, position + first, shape, work, launch.score)
        select_rows(first, rows, position + first, shape, work, launch.select)


def make_parts(values: torch.Tensor, parts: torch.Tensor) -> None:
    """Both parts of contiguous values into the beginnings of parts[0] and parts[1]."""
    count = values.numel()
    parts_kernel[(triton.cdiv(count, VALUES_AT_ONCE),)](
        values, parts[0], parts[1], count, VALUES=VALUES_AT_ONCE, num_warps=4, enable_fp_fusion=False
    )


def score_rows(
    first: int, rows: int, position: int, shape: AttentionRowsShape, work: AttentionReadWork, launch: ScoreLaunch
) -> None:
    """The scores of `rows` rows of which the first is row `first` of the read, at `position`."""
    indexer, choice = shape.indexer, work.choice
    assert indexer is not None and choice is not None
    blocks = (position + rows) // indexer.ratio
    scores_kernel[(triton.cdiv(blocks, launch.blocks), triton.cdiv(rows, launch.rows))](
        choice.query_parts[0, first:], choice.query_parts[1, first:], *choice.block_parts, choice.scores,
        choice.greatest, choice.scores.stride(0), rows, position, indexer.head_dim**-0.5,
        HEADS=indexer.heads, DIM=indexer.head_dim, RATIO=indexer.ratio, GROUP=GROUP_BLOCKS,
        ROWS=launch.rows, BLOCKS=launch.blocks, STAGES=launch.stages,
        num_warps=launch.warps, enable_fp_fusion=False,
    )  # fmt: skip


def select_rows(
    first: int, rows: int, position: int, shape: AttentionRowsShape, work: AttentionReadWork, launch: SelectLaunch
) -> None:
    """What these rows choose."""
    indexer, choice = shape.indexer, work.choice
    assert indexer is not None and choice is not None
    groups, few = choice.greatest.shape[1], max(launch.few, triton.next_power_of_2(indexer.top_blocks + 1))
    many = max(few, min(launch.many, triton.next_power_of_2(groups)))
    select_kernel[(rows,)](
        choice.scores, choice.greatest, choice.groups, choice.chosen[first:], choice.scores.stride(0), position,
        RATIO=indexer.ratio, TOP=indexer.top_blocks, PADDED=triton.next_power_of_2(indexer.top_blocks),
        GROUP=GROUP_BLOCKS, FEW=few, MANY=many, IS_ONE_CHUNK=groups <= many,
        num_warps=launch.warps, enable_fp_fusion=False,
    )  # fmt: skip


def read_attend(
    projected: ProjectedRows,
    position: int,
    slot: int,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionReadWork,
    out: torch.Tensor,
    launch: AttentionReadLaunch | None = None,
) -> None:
    """See the package."""
    launch, dense = launch or launch_of(work.query.device, shape), dense_rows(work.rows, position, shape)
    keys, values = multiplied_cells(cells, slot, position + work.rows, work)
    qkv, indexer = projected.qkv, shape.indexer
    constants = {
        "QUERY_HEADS": shape.query_heads, "KV_HEADS": shape.kv_heads, "GROUP": shape.group, "DIM": shape.head_dim,
        "IS_GATED": shape.has_output_gate, "enable_fp_fusion": False,
    }  # fmt: skip
    if dense:
        cut = launch.dense
        dense_kernel[(shape.query_heads, triton.cdiv(dense, cut.rows))](
            work.query, keys, values, qkv, qkv.stride(0), out, dense, position,
            ROWS=cut.rows, CELLS=cut.cells, STAGES=cut.stages, num_warps=cut.warps, **constants,
        )  # fmt: skip
    if dense < work.rows:
        assert indexer is not None and work.choice is not None
        step = launch.gathered
        gathered_kernel[(work.rows - dense, shape.kv_heads)](
            work.query, keys, values, work.choice.chosen, qkv, qkv.stride(0), out, dense, position,
            PADDED=max(16, triton.next_power_of_2(shape.group)), RATIO=indexer.ratio, TOP=indexer.top_blocks,
            CELLS=step.cells, STAGES=step.stages, num_warps=step.warps, **constants,
        )  # fmt: skip


def multiplied_cells(
    cells: AttentionCells, slot: int, end: int, work: AttentionReadWork
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values bfloat16 [cells, kv_heads, head_dim] of a slot up to `end`: in place, or decoded into `work`."""
    if cells.are_multiplied_in_place:
        return cells.keys.codes[slot], cells.values.codes[slot]
    assert work.keys is not None and work.values is not None
    heads, head_dim = end * work.keys.shape[1], work.keys.shape[2]
    multiplied_kernel[(triton.cdiv(heads, HEADS_AT_ONCE), 2)](
        *pointers(cells.keys[slot]), work.keys, *pointers(cells.values[slot]), work.values, heads,
        KEY_CODE=cells.kind.keys.value, VALUE_CODE=cells.kind.values.value, DIM=head_dim, HEADS=HEADS_AT_ONCE,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return work.keys, work.values
