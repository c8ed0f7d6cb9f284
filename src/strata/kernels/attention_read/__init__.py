"""Attention of a read's rows, thousands of one slot, over its cells: checks, and chooses torch's definition or Triton.

One layer is `attention_prepare` of attention_rows, with an indexer `read_choose`, and `read_attend`. What a row gives
depends on its own position and cells, on no other row: a read has the bits of its pieces. Knows no arithmetic.
"""

import torch

from strata.kernels.attention_read.arguments import AttentionReadWork, ReadChoice
from strata.kernels.attention_read.checks import check_attend, check_choose
from strata.kernels.attention_rows.arguments import AttentionCells, AttentionRowsShape, ProjectedRows
from strata.kernels.roads import takes_reference

__all__ = ["AttentionReadWork", "ReadChoice", "read_attend", "read_choose"]


def read_choose(
    position: int, slot: int, cells: AttentionCells, shape: AttentionRowsShape, work: AttentionReadWork
) -> None:
    """The blocks of the rows from `position` on that do not see every cell, into `work.choice.chosen`.

    After `attention_prepare` of all rows. As windows choose, from products within 2^-16 of float32's: exactly the
    `top_blocks` best, the lower one first among equals. Raises ValueError for other shapes or types, or a layer
    without an indexer.
    """
    check_choose(position, slot, cells, shape, work)
    if takes_reference(work.query):
        from strata.kernels.attention_read.reference import read_choose as by_definition

        by_definition(position, slot, cells, shape, work)
    else:
        from strata.kernels.attention_read.triton import read_choose as by_kernels

        by_kernels(position, slot, cells, shape, work)


def read_attend(
    projected: ProjectedRows,
    position: int,
    slot: int,
    cells: AttentionCells,
    shape: AttentionRowsShape,
    work: AttentionReadWork,
    out: torch.Tensor,
) -> None:
    """Each row's attention, times the sigmoid of its gate, into `out` bfloat16 [R, query_heads * head_dim].

    Over the cells up to the row's own, or those of its chosen blocks and behind the last complete one; queries, keys,
    values and softmax's shares are rounded to bfloat16. Raises ValueError for other shapes or types.
    """
    check_attend(projected, position, slot, cells, shape, work, out)
    if takes_reference(work.query):
        from strata.kernels.attention_read.reference import read_attend as by_definition

        by_definition(projected, position, slot, cells, shape, work, out)
    else:
        from strata.kernels.attention_read.triton import read_attend as by_kernels

        by_kernels(projected, position, slot, cells, shape, work, out)
