"""A window's rows as the twins read them: segments that are in use, unused ones between and behind them."""

from strata.kernels.window_rows import Segment, WindowRows
from tests.kernels.window_cases import window_of


def test_segments_in_use_are_those_with_a_slot_and_rows() -> None:
    rows = window_of([(4, 3), (1, 0), (0, 1)], bucket=6, room=5)
    assert rows.used_segments() == [Segment(0, 4, 0, 3), Segment(2, 0, 3, 1)]
    assert rows.slots.tolist() == [4, 4, 4, 0, -1, -1]
    assert rows.first_rows.tolist() == [0, 0, 0, 3, 0, 0]
    assert (rows.count, rows.segments) == (6, 5)


def test_an_empty_bucket_has_no_segment() -> None:
    rows = WindowRows.empty(2, 1, "cpu")
    assert rows.used_segments() == [] and rows.slots.tolist() == [-1, -1]
