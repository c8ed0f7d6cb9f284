"""The pool of blocks as it is defined: what is needed is there with its own bytes, and the right one gives way."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.cell_pages import Total, copy_cells, resolve_pages
from strata.quant.cell_codes import CellKind
from tests.kernels.page_cases import PageCase, PageShape


@pytest.mark.parametrize("kind", CellKind)
def test_what_rows_need_has_a_place_and_its_bytes(kind: CellKind) -> None:
    case = PageCase.make(PageShape(kind=kind))
    for _ in range(12):
        rows, choice, needed = case.window()
        missing, totals = case.missing(needed), case.pages.totals.clone()
        resolve_pages(rows, choice, case.cells, case.pages, case.work)
        case.check(needed, missing, totals)
    assert 0 < int(case.pages.totals[Total.BROUGHT]) < int(case.pages.totals[Total.ASKED])


def test_the_block_that_nobody_needed_since_the_hand_passed_gives_way() -> None:
    """Three places beside those of a row: CLOCK brings back none that every second row needs."""
    shape = PageShape(slots=1, top=2, rows=1, places=6)
    case = PageCase.make(shape)

    def need(*blocks: int) -> int:
        rows, choice, _ = case.window()
        rows.slots[0], rows.positions[0], choice.counts[0] = 0, 4 * shape.blocks - 1, 2
        choice.chosen[0] = torch.tensor(blocks)
        before = int(case.pages.totals[Total.BROUGHT])
        resolve_pages(rows, choice, case.cells, case.pages, case.work)
        return int(case.pages.totals[Total.BROUGHT]) - before

    assert [need(0, 1), need(2, 3), need(4, 5)] == [2, 2, 2]
    assert need(0, 6) == 1  # all have their second chance: the hand goes round, and 1 is the first without
    assert [need(0, 7), need(0, 8)] == [1, 1]  # 2 and 3
    assert need(4, 5) == 0, "those that nobody came to yet are still there"
    assert need(0, 1) == 1


def test_what_does_not_fit_one_another_is_refused() -> None:
    case = PageCase.make(PageShape())
    rows, choice, _ = case.window()
    for other, words in (
        (PageCase.make(PageShape(places=14)), "a pool of 14 blocks is too small for one row: it needs 15"),
        (PageCase.make(PageShape(blocks=32)), "32 blocks of 4 cells a slot, the slots have 256 cells"),
    ):
        with pytest.raises(ValueError, match=words):
            resolve_pages(rows, choice, case.cells, other.pages, case.work)
    few = replace(case.work, missing=case.work.missing[:20], targets=case.work.targets[:20])
    with pytest.raises(ValueError, match="room for 20 blocks; 3 rows may need 45"):
        resolve_pages(rows, choice, case.cells, case.pages, few)


def test_cells_are_copied_as_they_are() -> None:
    found, wanted = torch.randn(16, 3), torch.zeros(16, 3)
    copy_cells([found], [wanted], torch.device("cpu"))
    assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="found must be contiguous"):
        copy_cells([found.T], [wanted.T.contiguous()], torch.device("cpu"))
    with pytest.raises(ValueError, match="found has 60 bytes: 64 must divide them"):
        copy_cells([found[:5]], [wanted[:5]], torch.device("cpu"))
