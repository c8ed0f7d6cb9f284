"""Counts that come late: every decode window is counted once, a prompt's rows never, and nobody waits."""

import numpy as np
import pytest
import torch

from strata.experts.asked_counts import AskedCounts
from strata.experts.streams import PlainStreams
from tests.experts.late_streams import LateStreams

READ, WINDOW = True, False


def run(launches: list[bool], every: int) -> list[int | None]:
    """One expert that every launch asks for: what is told before each launch, and before one that follows."""
    asked = torch.zeros(1, 1, dtype=torch.int32)
    counts = AskedCounts(asked, PlainStreams())
    told = []
    for is_read in [*launches, WINDOW]:
        counts.before_launch(is_read=is_read, every=every)
        found = counts.take()
        told.append(None if found is None else int(found[0, 0]))
        asked += 100 if is_read else 1
    return told


@pytest.mark.parametrize(
    ("launches", "every", "told"),
    [
        ([WINDOW] * 4, 1, [None, 1, 1, 1, 1]),
        ([WINDOW] * 5, 2, [None, None, 2, None, 2, None]),
        ([READ] * 3, 1, [None, None, None, None]),  # the last one is a window: what it follows is not counted
        ([WINDOW, READ, READ, WINDOW, WINDOW], 1, [None, 1, None, None, 1, 1]),
        ([WINDOW, READ, WINDOW, WINDOW, WINDOW, WINDOW], 4, [None, 1, None, None, None, None, 4]),
    ],
)
def test_windows_are_counted_and_reads_are_not(launches: list[bool], every: int, told: list[int | None]) -> None:
    assert run(launches, every) == told


def test_a_copy_that_is_late_is_not_asked_for_twice_and_loses_no_window() -> None:
    asked, streams = torch.zeros(2, 3, dtype=torch.int32), LateStreams()
    counts = AskedCounts(asked, streams)

    def ask() -> bool:
        asked[1, 2] += 1
        return True

    for _ in range(5):
        counts.before_launch(is_read=False, every=1)
        assert counts.take() is None
        streams.main.append(ask)
    assert streams.calls == 2  # a copy and a mark
    while streams.main:
        assert streams.advance(streams.main)
    first = counts.take()
    counts.before_launch(is_read=False, every=1)
    while streams.main:
        assert streams.advance(streams.main)
    second = counts.take()
    assert first is not None
    assert second is not None
    assert first[1, 2] + second[1, 2] == 5
    assert first.sum() + second.sum() == 5


def test_while_a_copy_is_late_windows_among_reads_are_left_out() -> None:
    asked, streams = torch.zeros(1, 1, dtype=torch.int32), LateStreams()
    counts = AskedCounts(asked, streams)
    for is_read in (WINDOW, WINDOW, READ, WINDOW):  # the copy before the second is under way until the end
        counts.before_launch(is_read=is_read, every=1)
    while streams.main:
        assert streams.advance(streams.main)
    assert counts.take() is not None
    asked += 50
    counts.before_launch(is_read=WINDOW, every=1)
    while streams.main:
        assert streams.advance(streams.main)
    assert counts.take() is None


def test_counters_may_wrap() -> None:
    asked = torch.full((1, 1), 2**31 - 1, dtype=torch.int32)
    counts = AskedCounts(asked, PlainStreams())
    counts.before_launch(is_read=False, every=1)
    asked += 3
    counts.before_launch(is_read=False, every=1)
    assert np.array_equal(counts.take() or 0, [[3]])
