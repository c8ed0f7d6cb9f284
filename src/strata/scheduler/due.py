"""Which step comes next: a window of the running replies, or a piece of the prompt that is being read, and how much.

A pure function of a view and the limits; times come in as seconds. A prompt is cut at multiples of 64 of the
conversation, which changes no bit of what is read, into the largest chunks there are. A chunk passes the model step by
step, mostly a layer of it, and windows come between two steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.engine.steps import Read, Window
from strata.scheduler.places import GRID
from strata.settings import CPU_CHUNK_ROWS, EngineSettings
from strata.types import ReadAhead

MOST_WINDOW_ROWS = 32
_OLD_SHARE = 0.5  # of the estimate that a new measurement leaves
_FADE = 0.9  # what is left of the longest window after the next one


@dataclass(frozen=True)
class Limits:
    """What the user set, and how many rows the model reads together."""

    slots: int
    chunk_rows: int = CPU_CHUNK_ROWS
    max_gap: float = 0.1  # seconds between two windows of a reply that the steps of a read may make
    decode_share: float | None = None  # seconds of windows for each second of reading
    drafts: int = 0
    keep_turns: bool = True

    @classmethod
    def of(cls, settings: EngineSettings, slots: int, chunk_rows: int) -> "Limits":
        """As the settings say, for so many slots and rows of a chunk."""
        return cls(
            slots=slots,
            chunk_rows=chunk_rows,
            max_gap=settings.max_gap_ms / 1000,
            decode_share=settings.decode_share,
            drafts=settings.drafts,
            keep_turns=settings.turn_state == "kept",
        )


@dataclass(frozen=True)
class Reading:
    """The prompt that is being read: `position` of `total` rows are part of its slot's state."""

    slot: int
    position: int
    total: int
    piece: Read | None = None  # some of its steps are done
    points: Sequence[int] = ()  # rows of the whole prompt behind which others may go on: rising multiples of 64

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


@dataclass
class Pace:
    """What steps take, as measured, and what the running replies are owed for the read beside them."""

    step_seconds: float = 0.0  # of a read
    window_seconds: float = 0.0
    longest_window: float = 0.0  # of the last ones; what was queued before each is known no better than about
    owed_seconds: float = 0.0  # of windows, by the decode share
    last_was_window: bool = False

    def note_read(self, seconds: float, share: float) -> None:
        """A step of a read was done."""
        self.step_seconds = _blend(self.step_seconds or None, seconds)
        self.owed_seconds += share * seconds
        self.last_was_window = False

    def note_window(self, seconds: float, queued: float = 0.0, share: float = 0.0) -> None:
        """A window was run. queued: seconds of the read that the device had to do before it, see `ReadAhead`."""
        own = seconds - queued
        if own > 0:
            self.window_seconds = _blend(self.window_seconds or None, own)
            self.longest_window = max(own, _FADE * self.longest_window)
        else:  # it was less: they tell nothing of the window
            own, queued = 0.0, seconds
        owed = self.owed_seconds + share * queued - own
        self.owed_seconds = max(-own, owed)  # of what a window took too long, one is paid ahead at most
        self.last_was_window = True


def next_step(view: View, limits: Limits) -> Read | Window | None:
    """What to run now; None if nothing is under way.

    Beside running replies a read goes on unless they are owed windows or one is due, see `_is_window_due`; after one
    that takes the read's time it goes on by a step at least: a slow machine misses the gap, but neither side waits for
    ever.
    """
    reading, streams, pace = view.reading, view.streams, view.pace
    if reading is None:
        return _window(streams, limits, goes_on=True) if streams else None
    if streams and (pace.owed_seconds > 0 or _is_window_due(view, limits.max_gap)):
        return _window(streams, limits)
    return reading.piece or _chunk(reading, limits.chunk_rows)


def _is_window_due(view: View, max_gap: float) -> bool:
    """Whether a reply's gap would be full behind one more step of the read, or the device would stand still.

    A window stands behind what is queued on the device. Experts that are on their way go on beside it: if it ends
    before they have all arrived, and the rest of the chunk waits for more of them, it takes no time of the read.
    """
    pace, ahead = view.pace, view.ahead
    if 0 < pace.window_seconds <= ahead.spare:
        return True
    if pace.last_was_window:
        return False
    step = pace.step_seconds if ahead.next_step is None else ahead.next_step
    since = view.now - min(stream.last_token for stream in view.streams)
    return since + ahead.queued + step + max(pace.window_seconds, pace.longest_window) > max_gap


def _chunk(reading: Reading, rows: int) -> Read:
    """As many rows as pass the model together, with the points among them."""
    stop = reading.total
    if reading.position + rows < stop:
        stop = (reading.position + rows) // GRID * GRID
    return Read(reading.slot, stop, reading.points_up_to(stop))


def _window(streams: Sequence[Stream], limits: Limits, *, goes_on: bool = False) -> Window:
    """All running replies, with as many drafts as a window has rows for."""
    rows_each = MOST_WINDOW_ROWS // len(streams)
    most = min(limits.drafts, rows_each - 1)
    return Window({stream.slot: most for stream in streams}, goes_on)


def _blend(old: float | None, new: float) -> float:
    return new if old is None else _OLD_SHARE * old + (1 - _OLD_SHARE) * new
