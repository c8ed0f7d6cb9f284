"""A layer's windows over cells in main memory and a pool, held against the same over cells on the device: by Triton.

For the interpreter's tests and for tests/gpu. Each check raises AssertionError.
"""

from dataclasses import replace

import torch

from strata.kernels.attention_rows import AttentionCells
from strata.kernels.cell_pages import NO_PLACE, CellPages, PageWork, Total, Word, blocks_of_row, sides
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.cell_codes import CellRows
from tests.kernels.attention_cases import AttentionWindow, cell_tensors


def paged_cells(cells: AttentionCells, ratio: int, places: int) -> AttentionCells:
    """The same cells in main memory, and a pool with no block."""
    assert cells.raw is not None
    device, blocks = cells.raw.device, cells.count // ratio

    def words(*sizes: int, value: int = 0, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(sizes, value, dtype=dtype, device=device)

    def held(side: CellRows) -> CellRows:
        return CellRows(*(part.new_zeros(places * ratio, *part.shape[2:]) for part in side.tensors))

    def stored(side: CellRows) -> CellRows:
        found = (part.to("cpu", copy=True) for part in side.tensors)
        return CellRows(*(part.pin_memory() if device.type == "cuda" else part for part in found))

    tables = words(cells.slots, blocks, value=NO_PLACE), words(places, value=NO_PLACE), words(places)
    counts = words(len(Word)), words(len(Total), dtype=torch.int64)
    pages = CellPages(*tables, *counts, held(cells.keys), held(cells.values))
    return replace(cells, keys=stored(cells.keys), values=stored(cells.values), pages=pages)


def run_layer(window: AttentionWindow) -> torch.Tensor:
    """All launches of the layer; [rows, query_width]."""
    from strata.kernels.attention_rows.attend import attention_attend
    from strata.kernels.attention_rows.choose import attention_choose
    from strata.kernels.attention_rows.prepare import attention_prepare
    from strata.kernels.cell_pages.triton import resolve_pages

    shape, cells, work, rows = window.layer.shape, window.cells, window.work, window.rows
    out = torch.full((rows.count, shape.query_width), float("nan"), device=work.query.device)
    attention_prepare(window.projected, rows, window.rotation, cells, window.layer, work)
    attention_choose(rows, cells, shape, work)
    if cells.pages is not None:
        assert work.choice is not None and shape.indexer is not None
        missing = PageWork.empty(rows.count * blocks_of_row(shape.indexer.top_blocks), work.query.device)
        resolve_pages(rows, work.choice, cells, cells.pages, missing)
    attention_attend(window.projected, rows, cells, shape, work, RowsOut(out, None))
    return out


def check_paged(window: AttentionWindow, places: int, later: int = 3) -> int:
    """Some windows behind one another, each with rows behind those of the last: the same rows and cells, bit for bit.

    Returns how many blocks were brought.
    """
    indexer = window.layer.shape.indexer
    assert indexer is not None
    whole = window.with_own_state()
    paged = replace(window.with_own_state(), cells=paged_cells(window.cells, indexer.ratio, places))
    assert paged.cells.pages is not None
    brought = paged.cells.pages.totals
    for step in range(later):
        for each in (whole, paged):
            each.rows.positions.copy_(window.rows.positions + 2 * step * (window.rows.slots >= 0))
        found, wanted = run_layer(paged), run_layer(whole)
        assert torch.equal(found, wanted), f"rows of window {step} differ"
    for name, tensor in cell_tensors(paged.cells).items():
        assert torch.equal(tensor.cpu(), cell_tensors(whole.cells)[name].cpu()), f"{name} differ"
    table = paged.cells.pages.table.view(-1)
    resident = torch.nonzero(table >= 0).flatten()
    for stored, held in zip(sides(paged.cells), sides(paged.cells.pages), strict=True):
        block = (-1, indexer.ratio * stored[0, 0].numel())
        same = held.view(block)[table[resident].long()].cpu() == stored.view(block)[resident.cpu()]
        assert bool(same.all()), "the pool has other bytes"
    return int(brought[Total.BROUGHT])
