"""What runs next, for views placed by hand."""

import pytest

from strata.engine.steps import Read, Window
from strata.scheduler.due import Limits, Pace, Reading, Stream, View, next_step
from strata.settings import EngineSettings

LIMITS = Limits(slots=4, chunk_rows=512, max_gap=0.1)


def view(reading: Reading | None, last_tokens: tuple[float, ...] = (), now: float = 10.0, **pace: float) -> View:
    streams = [Stream(slot, last) for slot, last in enumerate(last_tokens, start=1)]
    return View(now, reading, streams, Pace(**pace))


def test_nothing_under_way_nothing_to_do() -> None:
    assert next_step(view(None), LIMITS) is None


def test_replies_alone_get_windows() -> None:
    assert next_step(view(None, (9.9, 9.9)), LIMITS) == Window({1: 0, 2: 0}, goes_on=True)


@pytest.mark.parametrize(
    ("position", "total", "stop"),
    [
        *[(0, 2000, 512), (0, 40, 40), (0, 64, 64), (0, 65, 64), (64, 65, 65), (0, 512, 448), (448, 512, 512)],
        *[(0, 513, 512), (512, 513, 513), (37, 2000, 512), (512, 1100, 1024), (1000, 1010, 1010), (70, 100, 100)],
    ],
)
def test_a_prompt_alone_is_read_in_chunks_on_the_grid(position: int, total: int, stop: int) -> None:
    assert next_step(view(Reading(0, position, total)), LIMITS) == Read(0, stop)


@pytest.mark.parametrize(
    ("since", "stop"),  # seconds since the last window; a row takes 0.2 ms, a window 10 ms
    [(0.0, 448), (0.03, 256), (0.06, 128), (0.077, 64), (0.079, None), (0.2, None)],
)
def test_a_piece_is_what_fits_before_the_gap_is_full(since: float, stop: int | None) -> None:
    seen = view(Reading(0, 0, 5000), (10.0 - since, 10.0), row_seconds=0.0002, window_seconds=0.01)
    expected = Window({1: 0, 2: 0}) if stop is None else Read(0, stop)
    assert next_step(seen, LIMITS) == expected


def test_after_a_window_64_rows_are_read_however_long_they_take() -> None:
    slow = {"row_seconds": 0.05, "window_seconds": 0.3}
    before = view(Reading(0, 0, 5000), (10.0,), **slow)
    after = view(Reading(0, 0, 5000), (10.0,), last_was_window=True, **slow)
    assert next_step(before, LIMITS) == Window({1: 0})
    assert next_step(after, LIMITS) == Read(0, 64)


def test_an_unknown_machine_starts_with_64_rows() -> None:
    assert next_step(view(Reading(0, 0, 5000), (10.0,)), LIMITS) == Read(0, 64)


LAYERED = Limits(slots=4, chunk_rows=512, max_gap=0.1, by_layers=True)


@pytest.mark.parametrize(
    ("position", "total", "stop", "point"),
    [
        *[(0, 2000, 512, None), (0, 40, 40, None), (0, 64, 64, None), (0, 65, 65, 64), (0, 512, 512, 448)],
        *[
            (64, 65, 65, None),
            (0, 513, 512, None),
            (37, 2000, 512, None),
            (37, 540, 540, 512),
            (1000, 1010, 1010, None),
        ],
    ],
)
def test_a_prompt_that_is_read_by_layers_is_cut_into_whole_chunks(
    position: int, total: int, stop: int, point: int | None
) -> None:
    """Its last line is a point inside the last chunk, or a chunk's end."""
    assert next_step(view(Reading(0, position, total)), LAYERED) == Read(0, stop, point)


@pytest.mark.parametrize(("since", "is_window"), [(0.0, False), (0.04, False), (0.07, True), (0.5, True)])
def test_a_window_runs_before_a_layer_that_would_fill_the_gap(since: float, is_window: bool) -> None:
    piece = Read(0, 512)
    seen = view(Reading(0, 0, 5000, piece), (10.0 - since, 10.0), layer_seconds=0.04, window_seconds=0.01)
    assert next_step(seen, LAYERED) == (Window({1: 0, 2: 0}) if is_window else piece)
    after = view(
        Reading(0, 0, 5000, piece), (10.0 - since,), layer_seconds=0.04, window_seconds=0.01, last_was_window=True
    )
    assert next_step(after, LAYERED) == piece


def test_windows_that_are_owed_come_one_after_another_between_layers() -> None:
    piece = Read(0, 512)
    for last_was_window in (False, True):
        owed = view(Reading(0, 0, 5000, piece), (10.0,), owed_seconds=0.03, last_was_window=last_was_window)
        assert next_step(owed, LAYERED) == Window({1: 0})


def test_layers_are_learned_and_owe_windows() -> None:
    pace = Pace()
    pace.note_layer(0.04, share=0.5)
    assert (pace.layer_seconds, pace.owed_seconds, pace.last_was_window) == (0.04, 0.02, False)
    assert next_step(View(10.0, Reading(0, 0, 900, Read(0, 512)), [Stream(1, 10.0)], pace), LAYERED) == Window({1: 0})
    pace.note_window(0.03)
    pace.note_layer(0.02, share=0.0)
    assert pace.layer_seconds == pytest.approx(0.03)


def test_windows_that_are_owed_come_first() -> None:
    owed = view(Reading(0, 0, 5000), (10.0,), owed_seconds=0.001, row_seconds=0.0001)
    assert next_step(owed, LIMITS) == Window({1: 0})


@pytest.mark.parametrize(("streams", "drafts", "most"), [(1, 3, 3), (8, 3, 3), (9, 3, 2), (16, 8, 1), (32, 8, 0)])
def test_drafts_leave_every_reply_its_row(streams: int, drafts: int, most: int) -> None:
    step = next_step(view(None, (9.9,) * streams), Limits(slots=streams, drafts=drafts))
    assert isinstance(step, Window)
    assert set(step.most_drafts.values()) == {most}


def test_pace_learns_and_owes() -> None:
    pace = Pace()
    pace.note_read(100, 1.0, share=0.5)
    assert (pace.row_seconds, pace.owed_seconds, pace.last_was_window) == (0.01, 0.5, False)
    pace.note_read(100, 2.0, share=0.0)
    assert pace.row_seconds == pytest.approx(0.015)
    pace.note_window(0.2)
    assert (pace.window_seconds, pace.last_was_window) == (0.2, True)
    assert pace.owed_seconds == pytest.approx(0.3)
    pace.note_window(0.4)
    assert (pace.window_seconds, pace.owed_seconds) == (pytest.approx(0.3), 0.0)


def test_limits_are_those_of_the_settings() -> None:
    settings = EngineSettings(chunk_rows=128, max_gap_ms=50, decode_share=0.5, drafts=2, turn_state="read")
    assert Limits.of(settings, 3) == Limits(3, 128, 0.05, 0.5, 2, keep_turns=False)
