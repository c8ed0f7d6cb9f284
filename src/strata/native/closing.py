"""What every handle of the library shares: it ends with its block, and with its last reference."""

from types import TracebackType
from typing import Self


class Closing:
    """A context manager over `close`, which a subclass makes harmless the second time and after a failed start."""

    def close(self) -> None:
        """Let go of what the library holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
