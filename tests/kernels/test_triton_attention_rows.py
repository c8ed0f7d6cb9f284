"""Triton's attention of a window in its interpreter gives what the torch twin gives: `make interpreter`."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from strata.kernels.attention_rows import AttentionRowsShape
from strata.quant.cell_codes import CellKind
from tests.kernels import attention_checks as checks
from tests.kernels.attention_cases import GATED, INDEXED, PLAIN, Segment, random_window
from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter

PLAIN_SEGMENTS = [(1, 66, 2), (0, 0, 1)]
# blocks completed from old and new raw keys; a slot that passes from dense to gathered rows (at 67)
INDEXED_SEGMENTS = [(1, 0, 4), (0, 65, 5), (2, 130, 2)]
LARGE = replace(INDEXED, query_heads=8, kv_heads=2, head_dim=128)
WINDOWS = [(PLAIN, PLAIN_SEGMENTS), (GATED, PLAIN_SEGMENTS), (INDEXED, INDEXED_SEGMENTS), (LARGE, INDEXED_SEGMENTS)]


@pytest.mark.parametrize(("shape", "segments"), WINDOWS)
@pytest.mark.parametrize("is_normed", [False, True])
def test_prepared_rows_are_the_twins(shape: AttentionRowsShape, segments: Sequence[Segment], is_normed: bool) -> None:
    checks.check_prepared(random_window(shape, segments, 192, half=4, unused=1, is_normed=is_normed))


@pytest.mark.parametrize(("shape", "segments"), WINDOWS)
def test_attended_rows_are_the_twins(shape: AttentionRowsShape, segments: Sequence[Segment]) -> None:
    checks.check_attended(random_window(shape, segments, 192, half=4, unused=1))


def test_long_rows_are_cut_into_larger_parts() -> None:
    """Row 4,200 has parts of 64 cells; cells up to 4,608 are there and are not seen."""
    checks.check_attended(random_window(replace(PLAIN, query_heads=1, kv_heads=1), [(0, 4200, 1)], 4608, half=4))


def test_few_programs_score_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.kernels.attention_rows import choose

    monkeypatch.setattr(choose, "MOST_PROGRAMS", 6)  # two for each row
    checks.check_attended(random_window(INDEXED, [(0, 1020, 2), (1, 300, 1)], 1024, half=4))


@pytest.mark.parametrize(("shape", "segments"), [(GATED, PLAIN_SEGMENTS), (INDEXED, [*INDEXED_SEGMENTS, (3, 380, 1)])])
def test_later_launches_give_the_same_bits(shape: AttentionRowsShape, segments: Sequence[Segment]) -> None:
    """Some rows are scored by several programs each."""
    checks.check_again(random_window(shape, segments, 384, half=4, unused=1))


@pytest.mark.parametrize(("shape", "segments"), [(GATED, PLAIN_SEGMENTS), (INDEXED, INDEXED_SEGMENTS)])
def test_a_row_has_the_same_bits_alone_and_in_company(shape: AttentionRowsShape, segments: Sequence[Segment]) -> None:
    checks.check_company(random_window(shape, segments, 192, half=4, unused=1))


@pytest.mark.parametrize("values", checks.SELECTIONS)
@pytest.mark.parametrize("chunk", [64, 8192])
def test_the_best_blocks_are_selected_exactly(values: str, chunk: int) -> None:
    checks.check_selection(values, 200, 16, chunk, "cpu")


def test_rows_for_the_next_matrix_are_quantized_as_defined() -> None:
    checks.check_quantized(random_window(GATED, PLAIN_SEGMENTS, 128, half=4, unused=1))


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.INT8, CellKind.K8V4, CellKind.Q4])
def test_every_kind_of_cells_is_written_and_attended_to_as_the_twin_does(kind: CellKind) -> None:
    """Heads of one group and less, of two groups; a row's bits in any company."""
    for shape in (INDEXED, replace(GATED, head_dim=64), replace(LARGE, query_heads=2, kv_heads=1)):
        window = random_window(shape, [(0, 66, 2), (1, 3, 1)], 128, half=4, unused=1, kind=kind)
        checks.check_prepared(window)
        checks.check_attended(window)
        if shape is INDEXED and kind in (CellKind.BF16, CellKind.Q4):
            checks.check_company(window)
