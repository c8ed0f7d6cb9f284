"""A clock that never goes back, whatever the one below it does. Knows seconds."""

from collections.abc import Callable


class SteadyClock:
    """Goes on with another clock; where that one jumps back, it stands still for a moment and goes on from there."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = self._now = clock()

    def __call__(self) -> float:
        """Seconds; never fewer than the last time."""
        last, self._last = self._last, self._clock()
        self._now += max(0.0, self._last - last)
        return self._now
