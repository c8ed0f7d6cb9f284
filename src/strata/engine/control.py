"""What a caller may say while a request runs: stop, and "tell me how far reading has come".

Knows no request; made by the caller, asked by the engine between two calls of the model.
"""

import threading

from strata.types import ProgressCallback

READING = "reading the prompt"  # the stage that is reported


class RunControl:
    """Cancels from any thread; reports reading progress in tokens of the prompt."""

    def __init__(self, on_progress: ProgressCallback | None = None) -> None:
        self._cancelled = threading.Event()
        self._on_progress = on_progress
        self.kept_tokens: int | None = None  # of the reply, those that were handed out; None: all that came

    def cancel(self) -> None:
        """Ask the run to end; it does after the model call that is under way."""
        self._cancelled.set()

    def keep(self, tokens: int) -> None:
        """The caller found the reply's end in front of its last tokens: the conversation ends there."""
        self.kept_tokens = tokens

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    def report(self, done: int, total: int) -> None:
        """Tokens of the prompt that have been read so far; of a conversation that goes on some are from the start."""
        if self._on_progress is not None:
            self._on_progress(READING, done, total)
