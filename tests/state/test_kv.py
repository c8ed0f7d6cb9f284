"""Cells grow in chunks, keep what is committed and forget what is not."""

import pytest
import torch

from strata.quant.cell_codes import CellCode, decode, encode
from strata.state.checkpoints import fork, go_back, take_checkpoint
from strata.state.kv import CELL_STEP, GrowingCells, GrowingRows


def test_rows_stay_where_they_were_put_while_the_buffer_grows() -> None:
    rows = torch.randn(3 * CELL_STEP, 2, 4)
    grown = GrowingRows((2, 4), torch.float32)
    for part in rows.split(100):
        grown.append(part)
    assert grown.count == len(rows)
    assert torch.equal(grown.cells[: grown.count], rows)
    assert grown.cells.shape[0] % CELL_STEP == 0
    assert torch.equal(grown.cells[grown.count :], torch.zeros_like(grown.cells[grown.count :]))
    assert grown.bytes_used() == grown.cells.numel() * 4


def test_written_rows_are_not_committed() -> None:
    cells = GrowingRows((3,), torch.float32)
    cells.append(torch.ones(5, 3))
    cells.write(5, torch.full((4, 3), 2.0))
    assert cells.count == 5
    cells.append(torch.full((2, 3), 3.0))
    assert cells.count == 7 and torch.equal(cells.cells[5:7], torch.full((2, 3), 3.0))


def test_a_clone_holds_the_committed_rows_only() -> None:
    cells = GrowingRows((3,), torch.float64)
    cells.append(torch.ones(5, 3, dtype=torch.float64))
    cells.write(5, torch.full((4, 3), 2.0, dtype=torch.float64))
    copy = cells.clone()
    copy.append(torch.zeros(1, 3, dtype=torch.float64))
    assert cells.count == 5 and copy.count == 6
    assert torch.equal(cells.cells[5], torch.full((3,), 2.0, dtype=torch.float64))
    assert GrowingRows((3,), torch.float32).clone().count == 0


def test_truncated_rows_are_no_longer_committed() -> None:
    cells = GrowingRows((1,), torch.float32)
    cells.append(torch.arange(9.0)[:, None])
    cells.truncate(4)
    cells.truncate(6)
    assert cells.count == 4
    cells.append(torch.tensor([[-1.0]]))
    assert cells.cells[:5, 0].tolist() == [0.0, 1.0, 2.0, 3.0, -1.0]


@pytest.mark.parametrize("code", CellCode)
def test_stored_cells_are_committed_cut_back_and_copied_with_their_scales(code: CellCode) -> None:
    heads, cells = torch.randn(700, 2, 64), GrowingCells(code, 2, 64, torch.float32)
    expected = decode(code, encode(code, heads), 64)
    for part in heads[:600].split(250):
        cells.append(part)
    cells.write(600, heads[600:])
    assert cells.count == 600 and torch.equal(cells[:700].float(), expected)
    numbers = torch.tensor([[3, 611], [599, 0]])
    assert torch.equal(cells[numbers].float(), expected[numbers])
    saved = take_checkpoint(cells)
    cells.append(heads[:50])
    copy, whole = fork(cells, saved), cells.clone()
    go_back(cells, saved)
    assert (cells.count, copy.count, whole.count) == (600, 600, 650)
    cells.append(-heads[600:])
    assert torch.equal(copy[:600].float(), expected[:600])
    assert torch.equal(whole[:650].float(), torch.cat((expected[:600], expected[:50])))
    assert cells.shape == (1024, 2, 64) and cells.bytes_used() == 1024 * 2 * code.head_bytes(64)


def test_cells_of_no_text_take_nothing_and_can_be_copied() -> None:
    cells = GrowingCells(CellCode.CODE4, 2, 64, torch.float32)
    assert cells.bytes_used() == 0 and cells.clone().count == 0
    copy = cells.clone()
    copy.append(torch.ones(1, 2, 64))
    assert (cells.count, copy.count) == (0, 1)
