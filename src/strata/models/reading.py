"""A read in one step, for models whose rows pass all layers in one call. See `models.base.Reading`."""

from collections.abc import Callable

from strata.models.base import Output


class ReadAtOnce:
    """See `Reading`: the only step does everything."""

    checkpoint = None

    def __init__(self, read: Callable[[], Output]) -> None:
        self._read = read
        self._output: Output | None = None

    def advance(self) -> bool:
        """See `Reading.advance`."""
        self._output = self._read()
        return True

    def finish(self) -> Output:
        """See `Reading.finish`."""
        assert self._output is not None, "a read is finished behind its last step"
        return self._output

    def cancel(self) -> None:
        """See `Reading.cancel`."""
