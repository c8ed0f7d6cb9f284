"""Triton's pool of blocks in its interpreter: the same that holds of its definition, window after window."""

import pytest
import torch

from strata.quant.cell_codes import CellKind
from tests.kernels.attention_cases import INDEXED, random_window
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.page_cases import PageCase, PageShape
from tests.kernels.page_checks import check_paged

pytestmark = needs_interpreter

TIGHT = PageShape(slots=2, blocks=40, rows=4, places=60, kind=CellKind.K8V4)  # all that four rows may need, no more


@pytest.mark.parametrize("shape", [PageShape(), TIGHT, PageShape(slots=1, rows=1, places=33, kv_heads=3)])
def test_what_rows_need_has_a_place_and_its_bytes(shape: PageShape, monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.kernels.cell_pages import triton

    monkeypatch.setattr(triton, "LOOKED_AT", 16)  # so that the hand goes on from one piece to the next
    case = PageCase.make(shape)
    for _ in range(10):
        rows, choice, needed = case.window()
        missing, totals = case.missing(needed), case.pages.totals.clone()
        triton.resolve_pages(rows, choice, case.cells, case.pages, case.work)
        case.check(needed, missing, totals)


def test_stamps_begin_again_behind_the_last_one() -> None:
    from strata.kernels.cell_pages import Word, triton
    from strata.kernels.cell_pages.arguments import MOST_STAMP

    case = PageCase.make(PageShape())
    case.pages.words[Word.STAMP] = MOST_STAMP - 1
    for stamp in (MOST_STAMP, 1, 2):
        rows, choice, needed = case.window()
        missing, totals = case.missing(needed), case.pages.totals.clone()
        triton.resolve_pages(rows, choice, case.cells, case.pages, case.work)
        case.check(needed, missing, totals)
        assert int(case.pages.words[Word.STAMP]) == stamp


def test_the_definition_and_the_kernels_bring_the_same_blocks() -> None:
    from strata.kernels.cell_pages import reference, triton

    cases = [PageCase.make(PageShape(slots=1, rows=1, places=33)) for _ in range(2)]
    for _ in range(8):
        for case, road in zip(cases, (reference, triton), strict=True):
            road.resolve_pages(*case.window()[:2], case.cells, case.pages, case.work)
        assert torch.equal(cases[0].pages.table >= 0, cases[1].pages.table >= 0)
        assert torch.equal(cases[0].pages.totals, cases[1].pages.totals)


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.K8V4])
def test_windows_over_a_pool_have_the_bits_of_windows_over_all_cells(kind: CellKind) -> None:
    """A slot that passes from dense to gathered rows (at 67), one that has chosen long since, an unused row."""
    window = random_window(INDEXED, [(0, 65, 2), (1, 130, 2)], 192, half=4, unused=1, kind=kind)
    assert check_paged(window, 4 * 18, later=2) > 30
