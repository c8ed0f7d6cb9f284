"""Says how far a prompt has been read, how fast, and how long the rest will take. Knows token counts and a clock."""

import time
from collections.abc import Callable

from strata.engine.control import READING

LONG_PROMPT = 1024  # tokens to read; of fewer nothing is said where no terminal is
MOST_SECONDS = 120  # that are told as such, and not in minutes
LINE_SECONDS = 10.0  # between two lines


class ReadingPace:
    """Measures a read from the first report on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: tuple[float, int] | None = None

    def since_first(self, done: int) -> tuple[float, int]:
        """Seconds and tokens since the first report, which is this one if there was none."""
        now = self._clock()
        if self._began is None:
            self._began = now, done
        return now - self._began[0], done - self._began[1]

    def words(self, done: int, total: int) -> str:
        """`2,048 of 6,012 tokens, 1,880/s, 2 s left`; speed and rest are known from the second report on."""
        seconds, tokens = self.since_first(done)
        found = f"{done:,} of {total:,} tokens"
        if not tokens or not seconds:
            return found
        return f"{found}, {tokens / seconds:,.0f}/s, {_duration((total - done) * seconds / tokens)} left"


class ReadingLines:
    """A `ProgressCallback` where no terminal is: tells of a long prompt at its begin and end, and every ten seconds."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._pace = write, ReadingPace(clock)
        self._is_long: bool | None = None  # not known before the first report
        self._told = 0.0  # seconds since the first report at which the last line was written

    def __call__(self, stage: str, done: int, total: int) -> None:
        """See `ProgressCallback`."""
        if stage != READING:
            return
        seconds, tokens = self._pace.since_first(done)
        if self._is_long is None:
            self._is_long = total - done >= LONG_PROMPT
            if self._is_long:
                self._write(f"{READING}: {total - done:,} tokens")
        elif self._is_long and done == total and seconds:
            self._write(f"read {tokens:,} tokens in {_duration(seconds)}, {tokens / seconds:,.0f}/s")
        elif self._is_long and seconds - self._told >= LINE_SECONDS:
            self._told = seconds
            self._write(f"{READING}: {self._pace.words(done, total)}")


def _duration(seconds: float) -> str:
    if seconds > MOST_SECONDS:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
