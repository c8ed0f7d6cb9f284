"""Which step comes next: a window of the running replies, or a piece of the prompt that is being read, and how much.

A pure function of a view and the limits; times come in as seconds. A prompt is cut at multiples of 64 of the
conversation, which changes no bit of what is read, into the largest chunks there are. A chunk passes the model step by
step, mostly a layer of it; windows come between two steps, or between two runs of chunks (`read_modes.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strata.engine.steps import Read, Window
from strata.scheduler.groups import balanced
from strata.scheduler.read_modes import ReadMode, ReadRule, chunk_end, run_end
from strata.settings import CPU_CHUNK_ROWS, EngineSettings
from strata.types import ReadAhead

MOST_WINDOW_ROWS = 32
_OLD_SHARE = 0.5  # of the estimate that a new measurement leaves
_FADE = 0.9  # what is left of the longest window after the next one
_LATE_FADE = 0.98  # and of what gaps were longer than foreseen: what comes once in a chunk is not forgotten in the next
_MOST_LATE = 0.25  # of the longest gap: more is not set aside, or a read would get no time


@dataclass(frozen=True)
class Limits:
    """What the user set, and how many rows the model reads together."""

    slots: int
    chunk_rows: int = CPU_CHUNK_ROWS
    max_gap: float = 0.1  # seconds between two windows of a reply that the steps of a read may make
    rule: ReadRule = field(default_factory=ReadRule)
    drafts: int = 0
    keep_turns: bool = True
    groups: int = 1  # of slots, whose windows run side by side
    reads_runs: bool = False  # the engine reads many chunks in one call

    @classmethod
    def of(
        cls, settings: EngineSettings, slots: int, chunk_rows: int, is_piped: bool = False, groups: int = 1
    ) -> "Limits":
        """As the settings say, for so many slots and rows of a chunk, and the groups that were made.

        is_piped: several stages work on several groups.
        """
        return cls(
            slots=slots,
            chunk_rows=chunk_rows,
            max_gap=settings.max_gap_ms / 1000,
            rule=ReadRule.of(settings, chunk_rows, is_piped),
            drafts=settings.drafts,
            keep_turns=settings.turn_state == "kept",
            groups=groups,
        )

    def run_end(self, position: int, total: int) -> int:
        """Up to which row of a prompt of `total` the run goes that begins at `position`."""
        return run_end(self.rule, position, total, self.chunk_rows, self.reads_runs)


@dataclass(frozen=True)
class Reading:
    """The prompt that is being read: `position` of `total` rows are part of its slot's state."""

    slot: int
    position: int
    total: int
    piece: Read | None = None  # some of its steps are done
    points: Sequence[int] = ()  # rows of the whole prompt behind which others may go on: rising multiples of 64
    run_stop: int | None = None  # of the run under way; None: it stands between two

    def points_up_to(self, stop: int) -> tuple[int, ...]:
        """Of the rows that are not read yet."""
        return tuple(point for point in self.points if self.position < point <= min(stop, self.total - 1))


@dataclass(frozen=True)
class Stream:
    """A reply that is being decoded."""

    slot: int
    last_token: float


@dataclass(frozen=True)
class View:
    """All that the decision depends on."""

    now: float
    reading: Reading | None
    streams: Sequence[Stream]
    pace: "Pace"
    ahead: ReadAhead = field(default_factory=ReadAhead)  # of the read, on a device
    groups: Mapping[int, int] = field(default_factory=dict)  # of slots, in the last window


@dataclass
class Pace:
    """What steps take, as measured, and what the running replies are owed for the read beside them."""

    step_seconds: float = 0.0  # of a read
    step_rows: int = 0  # that passed the model together in the last one
    window_seconds: float = 0.0
    longest_window: float = 0.0  # of the last ones; what was queued before each is known no better than about
    owed_seconds: float = 0.0  # of windows, by the decode share
    last_was_window: bool = False
    foreseen_gap: float | None = None  # when a read was last preferred to a window; None: a window came since
    late_seconds: float = 0.0  # that gaps were longer than foreseen, lately

    def note_gap(self, seconds: float, max_gap: float) -> None:
        """A window ended a reply's gap of so many seconds."""
        if self.foreseen_gap is not None:
            late = max(seconds - self.foreseen_gap, _LATE_FADE * self.late_seconds)
            self.late_seconds = min(late, _MOST_LATE * max_gap)
            self.foreseen_gap = None

    def note_read(self, seconds: float, share: float, rows: int = 0) -> None:
        """A step of a read was done, of so many rows. Of more rows than the last one's it is the first to tell."""
        tells_alone = self.step_seconds == 0 or rows > self.step_rows
        self.step_seconds = seconds if tells_alone else _blend(self.step_seconds, seconds)
        self.step_rows = rows
        self.owed_seconds += share * seconds
        self.last_was_window = False

    def note_window(self, seconds: float, queued: float = 0.0, share: float = 0.0) -> None:
        """A window was run. queued: seconds of the read that the device had to do before it, see `ReadAhead`."""
        own = seconds - queued
        if own > 0:
            self.window_seconds = _blend(self.window_seconds, own) if self.window_seconds else own
            self.longest_window = max(own, _FADE * self.longest_window)
        else:  # it was less: they tell nothing of the window
            own, queued = 0.0, seconds
        owed = self.owed_seconds + share * queued - own
        self.owed_seconds = max(-own, owed)  # of what a window took too long, one is paid ahead at most
        self.last_was_window = True

    def next_step_seconds(self, rows: int) -> float:
        """What a step of so many rows takes at most: it grows with them, and no faster."""
        return self.step_seconds * max(1.0, rows / self.step_rows if self.step_rows else 1.0)


def next_step(view: View, limits: Limits) -> Read | Window | None:
    """What to run now; None if nothing is under way.

    Beside running replies a read goes on unless they are owed windows or, in the mode `layers`, one is due, see
    `_is_window_due`; after one that takes the read's time it goes on by a step at least: a slow machine misses the gap,
    but neither side waits for ever. In the other modes windows come between two runs alone.
    """
    reading, streams, pace = view.reading, view.streams, view.pace
    if reading is None:
        return _window(view, limits, goes_on=True) if streams else None
    if streams and limits.rule.mode is ReadMode.LAYERS:
        if pace.owed_seconds > 0 or _is_window_due(view, limits):
            return _window(view, limits)
    elif streams and reading.run_stop is None and pace.owed_seconds > 0:
        return _window(view, limits, goes_on=pace.owed_seconds > pace.window_seconds > 0)
    return reading.piece or _read(reading, limits)


def _is_window_due(view: View, limits: Limits) -> bool:
    """Whether a reply's gap would be full behind one more step of the read, or the device would stand still.

    A window stands behind what is queued on the device. Experts that are on their way go on beside it: if it ends
    before they have all arrived, and the rest of the chunk waits for more of them, it takes no time of the read.
    """
    pace, ahead = view.pace, view.ahead
    if 0 < pace.window_seconds <= ahead.spare:
        return True
    if pace.last_was_window:
        return False
    return foreseen_gap(view, limits) + pace.late_seconds > limits.max_gap


def foreseen_gap(view: View, limits: Limits) -> float:
    """Seconds that a running reply has waited behind one more step of the read and a window, as far as that is known.

    What a step takes beside its device - a chunk that begins, a prompt's first layer - is known no better than by how
    late windows came: `Pace.late_seconds` is what has to be added.
    """
    pace, ahead, reading = view.pace, view.ahead, view.reading
    step = ahead.next_step
    if step is None:
        assert reading is not None, "a window is due beside a read"
        rows = chunk_end(reading.position, reading.total, limits.chunk_rows) - reading.position
        step = pace.next_step_seconds(rows)
    since = view.now - min(stream.last_token for stream in view.streams)
    return since + ahead.queued + step + max(pace.window_seconds, pace.longest_window)


def _read(reading: Reading, limits: Limits) -> Read:
    """The next chunk of the run, or all of it, with the points in there."""
    stop = limits.run_end(reading.position, reading.total) if reading.run_stop is None else reading.run_stop
    if not limits.reads_runs:
        stop = min(stop, chunk_end(reading.position, reading.total, limits.chunk_rows))
    return Read(reading.slot, stop, reading.points_up_to(stop))


def _window(view: View, limits: Limits, *, goes_on: bool = False) -> Window:
    """All running replies in their groups, with as many drafts as a group's window has rows for."""
    slots = [stream.slot for stream in view.streams]
    groups = balanced(slots, view.groups, limits.groups) if limits.groups > 1 else {}
    largest = max(Counter(groups.values()).values(), default=len(slots))
    most = min(limits.drafts, MOST_WINDOW_ROWS // largest - 1)
    return Window(dict.fromkeys(slots, most), goes_on, groups)


def _blend(old: float, new: float) -> float:
    return _OLD_SHARE * old + (1 - _OLD_SHARE) * new
