"""Which step comes next: a window of the running replies, or a piece of the prompt that is being read, and how much.

A pure function of a view and the limits; times come in as seconds. Rows are cut at multiples of 64 of the conversation,
which changes no bit of what is read. Where rows pass the model by layers, a prompt is cut into the largest chunks there
are, and windows come between two layers; elsewhere it is cut into pieces that fit between two windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.engine.steps import Read, Window
from strata.scheduler.slots import GRID
from strata.settings import CPU_CHUNK_ROWS, EngineSettings

MOST_WINDOW_ROWS = 32
_OLD_SHARE = 0.5  # of the estimate that a new measurement leaves


@dataclass(frozen=True)
class Limits:
    """What the user set."""

    slots: int
    chunk_rows: int = CPU_CHUNK_ROWS
    max_gap: float = 0.1  # seconds between two windows of a reply that the steps of a read may make
    decode_share: float | None = None  # seconds of windows for each second of reading
    drafts: int = 0
    keep_turns: bool = True
    by_layers: bool = False  # a step of a read is a layer of such a chunk

    @classmethod
    def of(cls, settings: EngineSettings, slots: int) -> "Limits":
        """As the settings say, for so many slots."""
        return cls(
            slots=slots,
            chunk_rows=settings.cpu_chunk_rows,
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
    piece: Read | None = None  # some of its layers are done


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


@dataclass
class Pace:
    """What steps take, as measured, and what the running replies are owed for the read beside them."""

    row_seconds: float | None = None  # of a read
    layer_seconds: float = 0.0  # of one that goes by layers
    window_seconds: float = 0.0
    owed_seconds: float = 0.0  # of windows, by the decode share
    last_was_window: bool = False

    def note_read(self, rows: int, seconds: float, share: float) -> None:
        """A piece of a prompt was read."""
        self.row_seconds = _blend(self.row_seconds, seconds / rows)
        self.owed_seconds += share * seconds
        self.last_was_window = False

    def note_layer(self, seconds: float, share: float) -> None:
        """A layer of a chunk was done."""
        self.layer_seconds = _blend(self.layer_seconds or None, seconds)
        self.owed_seconds += share * seconds
        self.last_was_window = False

    def note_window(self, seconds: float) -> None:
        """A window was run."""
        self.window_seconds = _blend(self.window_seconds or None, seconds)
        self.owed_seconds = max(0.0, self.owed_seconds - seconds)
        self.last_was_window = True


def next_step(view: View, limits: Limits) -> Read | Window | None:
    """What to run now; None if nothing is under way.

    Beside running replies a read goes on by what fits before the oldest of their gaps is full, and after a window by 64
    rows at least: a slow machine misses the gap, but neither side waits for ever.
    """
    reading, streams, pace = view.reading, view.streams, view.pace
    if reading is None:
        return _window(streams, limits, goes_on=True) if streams else None
    if limits.by_layers:
        return _layer_or_window(view, reading, limits)
    if not streams:
        return Read(reading.slot, _stop(reading, limits.chunk_rows))
    if pace.owed_seconds > 0:
        return _window(streams, limits)
    if pace.row_seconds is None:
        fitting = GRID
    else:
        oldest = min(stream.last_token for stream in streams)
        left = limits.max_gap - (view.now - oldest) - pace.window_seconds
        fitting = int(left / pace.row_seconds) if pace.row_seconds > 0 else limits.chunk_rows
    stop = _stop(reading, min(fitting, limits.chunk_rows))
    if stop - reading.position > max(fitting, 0) and not pace.last_was_window:
        return _window(streams, limits)
    return Read(reading.slot, stop)


def _layer_or_window(view: View, reading: Reading, limits: Limits) -> Read | Window:
    """The next layer, unless windows are owed or a reply's gap would be full behind it; else one after each window."""
    streams, pace = view.streams, view.pace
    if streams and pace.owed_seconds > 0:
        return _window(streams, limits)
    if streams and not pace.last_was_window:
        oldest = min(stream.last_token for stream in streams)
        if limits.max_gap - (view.now - oldest) - pace.window_seconds - pace.layer_seconds < 0:
            return _window(streams, limits)
    return reading.piece or _chunk(reading, limits.chunk_rows)


def _chunk(reading: Reading, rows: int) -> Read:
    """As many rows as pass the model together; the last line in front of the prompt's end is a point at least."""
    stop = reading.total
    if reading.position + rows < stop:
        stop = (reading.position + rows) // GRID * GRID
    last_line = (reading.total - 1) // GRID * GRID
    return Read(reading.slot, stop, last_line if reading.position < last_line < stop else None)


def _stop(reading: Reading, rows: int) -> int:
    """Where a piece of about `rows` rows ends: on the grid, at least at its next line, or at the prompt's end.

    The last line in front of the end is always a cut: another prompt may go on from there.
    """
    next_line = (reading.position // GRID + 1) * GRID
    last_line = (reading.total - 1) // GRID * GRID
    wanted = max(next_line, (reading.position + rows) // GRID * GRID)
    return min(wanted, last_line) if reading.position < last_line else reading.total


def _window(streams: Sequence[Stream], limits: Limits, *, goes_on: bool = False) -> Window:
    """All running replies, with as many drafts as a window has rows for."""
    rows_each = MOST_WINDOW_ROWS // len(streams)
    most = min(limits.drafts, rows_each - 1)
    return Window({stream.slot: most for stream in streams}, goes_on)


def _blend(old: float | None, new: float) -> float:
    return new if old is None else _OLD_SHARE * old + (1 - _OLD_SHARE) * new
