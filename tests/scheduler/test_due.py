"""What runs next, for views placed by hand."""

from typing import Any

import pytest

from strata.engine.steps import Read, Window
from strata.scheduler.due import Limits, Pace, Reading, Stream, View, foreseen_gap, next_step
from strata.scheduler.places import points_wanted
from strata.scheduler.read_modes import ReadRule
from strata.settings import EngineSettings

LIMITS = Limits(slots=4, chunk_rows=512, max_gap=0.1)


def view(reading: Reading | None, last_tokens: tuple[float, ...] = (), now: float = 10.0, **pace: Any) -> View:
    streams = [Stream(slot, last) for slot, last in enumerate(last_tokens, start=1)]
    return View(now, reading, streams, Pace(**pace))


def test_nothing_under_way_nothing_to_do() -> None:
    assert next_step(view(None), LIMITS) is None


def test_replies_alone_get_windows() -> None:
    assert next_step(view(None, (9.9, 9.9)), LIMITS) == Window({1: 0, 2: 0}, goes_on=True)


@pytest.mark.parametrize(
    ("position", "total", "stop", "points"),
    [
        *[(0, 2000, 512, (256,)), (0, 40, 40, ()), (0, 64, 64, ()), (0, 65, 65, (64,)), (0, 512, 512, (256, 448))],
        *[
            (64, 65, 65, ()),
            (70, 100, 100, ()),
            (37, 2000, 512, (256,)),
            (512, 1100, 1024, ()),
            (0, 513, 512, (256, 512)),
            (37, 540, 540, (256, 512)),
            (1000, 1010, 1010, ()),
        ],
    ],
)
def test_a_prompt_is_read_in_whole_chunks_on_the_grid(
    position: int, total: int, stop: int, points: tuple[int, ...]
) -> None:
    """Points lie inside a chunk, or at its end."""
    reading = Reading(0, position, total, points=points_wanted(total, [300]))
    assert next_step(view(reading), LIMITS) == Read(0, stop, points)
    assert next_step(view(reading, (10.0,)), LIMITS) == Read(0, stop, points)


@pytest.mark.parametrize(("since", "is_window"), [(0.0, False), (0.04, False), (0.07, True), (0.5, True)])
def test_a_window_runs_before_a_step_that_would_fill_the_gap(since: float, is_window: bool) -> None:
    piece = Read(0, 512)
    seen = view(Reading(0, 0, 5000, piece), (10.0 - since, 10.0), step_seconds=0.04, window_seconds=0.01)
    assert next_step(seen, LIMITS) == (Window({1: 0, 2: 0}) if is_window else piece)
    after = view(
        Reading(0, 0, 5000, piece), (10.0 - since,), step_seconds=0.04, window_seconds=0.01, last_was_window=True
    )
    assert next_step(after, LIMITS) == piece


def test_windows_that_are_owed_come_one_after_another_between_two_steps() -> None:
    piece = Read(0, 512)
    for last_was_window in (False, True):
        owed = view(Reading(0, 0, 5000, piece), (10.0,), owed_seconds=0.03, last_was_window=last_was_window)
        assert next_step(owed, LIMITS) == Window({1: 0})


def test_after_a_window_a_step_comes_however_long_it_takes() -> None:
    slow = {"step_seconds": 3.0, "window_seconds": 0.3}
    assert next_step(view(Reading(0, 0, 5000), (10.0,), **slow), LIMITS) == Window({1: 0})
    assert next_step(view(Reading(0, 0, 5000), (10.0,), last_was_window=True, **slow), LIMITS) == Read(0, 512)


@pytest.mark.parametrize(("streams", "drafts", "most"), [(1, 3, 3), (8, 3, 3), (9, 3, 2), (16, 8, 1), (32, 8, 0)])
def test_drafts_leave_every_reply_its_row(streams: int, drafts: int, most: int) -> None:
    step = next_step(view(None, (9.9,) * streams), Limits(slots=streams, drafts=drafts))
    assert isinstance(step, Window)
    assert set(step.most_drafts.values()) == {most}


def test_pace_learns_and_owes() -> None:
    pace = Pace()
    pace.note_read(1.0, share=0.5)
    assert (pace.step_seconds, pace.owed_seconds, pace.last_was_window) == (1.0, 0.5, False)
    assert next_step(View(10.0, Reading(0, 0, 900, Read(0, 512)), [Stream(1, 10.0)], pace), LIMITS) == Window({1: 0})
    pace.note_read(2.0, share=0.0)
    assert pace.step_seconds == pytest.approx(1.5)
    pace.note_window(0.2)
    assert (pace.window_seconds, pace.last_was_window) == (0.2, True)
    assert pace.owed_seconds == pytest.approx(0.3)
    pace.note_window(0.4)
    assert (pace.window_seconds, pace.owed_seconds) == (pytest.approx(0.3), pytest.approx(-0.1))
    pace.note_window(0.2)
    assert pace.owed_seconds == -0.2  # no more than a window ahead


def test_what_gaps_were_late_is_set_aside_for_the_next_ones() -> None:
    """A gap of 107 ms was foreseen as one of 99: from then on windows come 8 ms earlier; that is forgotten slowly."""
    pace = Pace(step_seconds=0.01, window_seconds=0.01)
    reading, running = Reading(0, 0, 5000, Read(0, 512)), [Stream(1, 10.0)]

    def is_due(since: float) -> bool:
        return isinstance(next_step(View(10.0 + since, reading, running, pace), Limits(2)), Window)

    assert not is_due(0.079)
    pace.foreseen_gap = foreseen_gap(View(10.079, reading, running, pace), Limits(2))
    pace.note_gap(0.107, max_gap=0.1)
    assert pace.late_seconds == pytest.approx(0.008)
    assert is_due(0.079) and not is_due(0.0715)
    pace.note_gap(0.3, max_gap=0.1)
    assert pace.late_seconds == pytest.approx(0.008), "no step of a read was preferred meanwhile"
    pace.foreseen_gap = 0.09
    pace.note_gap(0.09, max_gap=0.1)
    assert 0.0075 < pace.late_seconds < 0.008
    pace.foreseen_gap = 0.09
    pace.note_gap(5.0, max_gap=0.1)
    assert pace.late_seconds == pytest.approx(0.025), "a read still gets time"


def test_limits_are_those_of_the_settings() -> None:
    settings = EngineSettings(max_gap_ms=50, decode_share=0.5, drafts=2, turn_state="read")
    assert Limits.of(settings, 3, 128) == Limits(3, 128, 0.05, ReadRule(decode_share=0.5), 2, keep_turns=False)
