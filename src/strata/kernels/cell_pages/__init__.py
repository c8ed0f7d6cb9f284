"""A pool on the device for blocks of cells that lie in main memory: checks, and chooses torch's definition or Triton.

Between `attention_choose` and `attention_attend` of a layer `resolve_pages` brings what the window's rows need. Which
place a block gets is nobody's to rely on; what lies there is the block's bytes in main memory, as long as whoever
writes cells writes both. Knows no attention.
"""

from collections.abc import Sequence

import torch

from strata.kernels.cell_pages.arguments import (
    CLAIMED,
    NO_PLACE,
    CellPages,
    ChosenBlocks,
    PageWork,
    StoredCells,
    Total,
    Word,
    blocks_of_row,
    sides,
)
from strata.kernels.checks import check_tensor
from strata.kernels.roads import takes_reference
from strata.kernels.window_rows import WindowRows

COPY_STEP = 64  # bytes: sixteen words, so that one compiled form copies all

__all__ = [
    "CLAIMED",
    "COPY_STEP",
    "NO_PLACE",
    "CellPages",
    "ChosenBlocks",
    "PageWork",
    "StoredCells",
    "Total",
    "Word",
    "blocks_of_row",
    "copy_cells",
    "resolve_pages",
    "sides",
]


def resolve_pages(rows: WindowRows, choice: ChosenBlocks, cells: StoredCells, pages: CellPages, work: PageWork) -> None:
    """Give every block that a used row needs a place in the pool, and copy those that had none from main memory.

    A row needs the blocks that it chooses and the one that is open behind them; a row that chooses none needs every
    block up to its own. Who gives way is found by CLOCK with a second chance, and is never needed by a row of this
    window: the used rows together must need no more blocks than the pool has places, which the caller sees to
    (`blocks_of_row` for each). Two launches. Raises ValueError for other shapes or types.
    """
    _check(rows, choice, cells, pages, work)
    if takes_reference(pages.table):
        from strata.kernels.cell_pages.reference import resolve_pages as by_definition

        by_definition(rows, choice, cells, pages, work)
    else:
        from strata.kernels.cell_pages.triton import resolve_pages as by_kernels

        by_kernels(rows, choice, cells, pages, work)


def copy_cells(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], device: torch.device) -> None:
    """Copy tensors of main memory in the order of the device's launches; a GPU reads and writes them over its link.

    Each pair is contiguous, of one kind, and has a multiple of COPY_STEP bytes. Raises ValueError for others.
    """
    for source, target in zip(found, wanted, strict=True):
        check_tensor("wanted", target, tuple(source.shape), source.dtype)
        check_tensor("found", source, tuple(source.shape), source.dtype)
        if source.nbytes % COPY_STEP:
            raise ValueError(f"found has {source.nbytes} bytes: {COPY_STEP} must divide them")
    if device.type == "cpu":
        for source, target in zip(found, wanted, strict=True):
            target.copy_(source)
    else:
        from strata.kernels.cell_pages.triton import copy_cells as by_kernels

        by_kernels(found, wanted, device)


def _check(rows: WindowRows, choice: ChosenBlocks, cells: StoredCells, pages: CellPages, work: PageWork) -> None:
    slots, count = cells.keys.codes.shape[:2]
    top, places, blocks, ratio = choice.chosen.shape[1], pages.places, pages.blocks, pages.ratio
    check_tensor("choice.chosen", choice.chosen, (rows.count, top), torch.int32)
    check_tensor("choice.counts", choice.counts, (rows.count,), torch.int32)
    if blocks * ratio != count:
        raise ValueError(f"pages.table has {blocks} blocks of {ratio} cells a slot, the slots have {count} cells")
    check_tensor("pages.table", pages.table, (slots, blocks), torch.int32)
    check_tensor("pages.owner", pages.owner, (places,), torch.int32)
    check_tensor("pages.used", pages.used, (places,), torch.int32)
    check_tensor("pages.words", pages.words, (len(Word),), torch.int32)
    check_tensor("pages.totals", pages.totals, (len(Total),), torch.int64)
    for stored, held in zip(sides(cells), sides(pages), strict=True):
        check_tensor("cells", stored, (slots, count, *stored.shape[2:]), stored.dtype)
        check_tensor("pages.keys and values", held, (places * ratio, *stored.shape[2:]), stored.dtype)
        if ratio * stored[0, 0].nbytes % 4:
            raise ValueError(f"a block of {ratio} cells has {ratio * stored[0, 0].nbytes} bytes: 4 must divide them")
    least = min(blocks_of_row(top), slots * blocks)
    if places < least:
        raise ValueError(f"a pool of {places} blocks is too small for one row: it needs {least}")
    needed = min(rows.count * blocks_of_row(top), places)
    check_tensor("work.missing", work.missing, (work.missing.numel(),), torch.int32)
    check_tensor("work.targets", work.targets, (work.missing.numel(),), torch.int32)
    if work.missing.numel() < needed:
        raise ValueError(f"work has room for {work.missing.numel()} blocks; {rows.count} rows may need {needed}")
