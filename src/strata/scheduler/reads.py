"""Prompts on their way into slots: the one that is read, those that gave way to it, and what their runs owe replies.

    | run | windows | run | windows | ... last run | first token        of one prompt, in the modes `whole` and `pieces`

Knows books of slots, rows and seconds; who reads next and what may pass is decided elsewhere.
"""

import logging
from dataclasses import dataclass

from strata.engine.steps import Read
from strata.scheduler.due import Limits, Reading
from strata.scheduler.read_modes import ReadMode, lead_in, windows_owed
from strata.scheduler.request import Run
from strata.scheduler.slots import SlotBook

LOG_NAME = "strata.scheduler"
_log = logging.getLogger(LOG_NAME)


@dataclass(frozen=True)
class RunTime:
    """A run that has ended, or what there was of it."""

    slot: int
    rows: int
    seconds: float  # of its steps


@dataclass
class PromptRead:
    """One prompt, from the opening of its slot to its last row."""

    slot: SlotBook
    piece: Read | None = None  # some of its steps are done
    run_start: int = 0
    run_stop: int | None = None  # of the run under way; None: between two runs
    run_seconds: float = 0.0  # of its steps so far
    times_given_way: int = 0

    @property
    def request(self) -> Run:
        """Whose prompt it is."""
        assert self.slot.run is not None, "a read ends with its request"
        return self.slot.run

    @property
    def total(self) -> int:
        """Rows of the prompt."""
        return len(self.request.request.prompt)

    @property
    def left(self) -> int:
        """Rows that are not part of the slot's state."""
        return self.total - self.request.read_rows

    @property
    def is_in_run(self) -> bool:
        """Whether it stands between two steps of a run."""
        return self.run_stop is not None

    def seen(self) -> Reading:
        """As the decision about the next step sees it."""
        run = self.request
        return Reading(self.slot.index, run.read_rows, self.total, self.piece, run.points, self.run_stop)


class Reads:
    """All prompts that are being read. At most one of them gets steps."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.current: PromptRead | None = None
        self._aside: list[PromptRead] = []
        self._run: RunTime | None = None  # has just ended, its prompt goes on, and no windows were granted for it
        self._last: RunTime | None = None  # of a read that has ended, and no window has run since

    def begin(self, slot: SlotBook) -> None:
        """A prompt gets its slot; what was read until now gives way."""
        if self.current is not None:
            self.current.times_given_way += 1
            self._aside.append(self.current)
        self.current = PromptRead(slot)

    def go_on(self) -> None:
        """If nothing is read, go on with the prompt that came first of those that gave way."""
        if self.current is None and self._aside:
            self.current = min(self._aside, key=lambda read: (read.request.arrived, read.request.request_id))
            self._aside.remove(self.current)

    def end(self, slot: SlotBook) -> bool:
        """A slot's prompt is read, or its request ends. Returns whether steps of it are under way, to be given up."""
        read = self._of(slot)
        if read is None:
            return False
        if read is not self.current:
            self._aside.remove(read)
            return read.piece is not None
        if read.run_stop is not None:
            self._last = RunTime(slot.index, read.request.read_rows - read.run_start, read.run_seconds)
        elif self._run is not None:
            self._tell_run(self._run, 0.0)
            self._last, self._run = self._run, None
        self.current = None
        return read.piece is not None

    def note_step(self, step: Read, is_under_way: bool, seconds: float) -> bool:
        """A step of the current read was done; its request does not count the rows yet.

        Returns whether a run ends that had no windows inside.
        """
        read = self.current
        assert read is not None and read.slot.index == step.slot, "steps are of the current read"
        if read.run_stop is None:
            read.run_start = read.request.read_rows
            read.run_stop = self._limits.run_end(read.run_start, read.total)
            read.run_seconds = 0.0
        read.run_seconds += seconds
        read.piece = step if is_under_way else None
        if is_under_way or step.stop < read.run_stop:
            return False
        done = RunTime(step.slot, step.stop - read.run_start, read.run_seconds)
        read.run_stop = None
        if step.stop < read.total:
            self._run = done
        else:
            self._last = done
            self._tell_run(done, 0.0)
        return self._limits.rule.mode is not ReadMode.LAYERS

    def note_window(self) -> None:
        """The running replies have got a window."""
        self._last = None

    def grant(self, has_streams: bool, queued: float) -> float | None:
        """Seconds of windows that come before the next run; None: as many as there are still owed.

        queued: of reading, that the device has to do yet.
        """
        if self._limits.rule.mode is ReadMode.LAYERS or self.current is None or self.current.is_in_run:
            return None
        run, last, self._run, self._last = self._run, self._last, None, None
        if run is not None:
            granted = windows_owed(self._limits.rule, run.seconds + queued) if has_streams else 0.0
            self._tell_run(run, granted)
            return granted
        granted = lead_in(self._limits.rule, last.seconds + queued) if has_streams and last is not None else 0.0
        if last is None or granted == 0.0:
            return None
        _log.info(
            "lead-in of slot %d: %.0f ms of windows, for a run of %d rows in %.0f ms in slot %d",
            *(self.current.slot.index, 1000 * granted, last.rows, 1000 * last.seconds, last.slot),
        )
        return granted

    def _tell_run(self, run: RunTime, granted: float) -> None:
        if self._limits.rule.mode is ReadMode.PIECES:
            _log.info(
                "run in slot %d: %d rows in %.0f ms, then %.0f ms of windows",
                *(run.slot, run.rows, 1000 * run.seconds, 1000 * granted),
            )

    def _of(self, slot: SlotBook) -> PromptRead | None:
        reads = self._aside if self.current is None else [self.current, *self._aside]
        return next((read for read in reads if read.slot is slot), None)
