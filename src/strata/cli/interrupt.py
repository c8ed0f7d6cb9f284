"""Ctrl-C during a reply: the first ends the reply cleanly, the second ends the program.

Knows signals; of a reply it knows that it can be cancelled.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ctrl_c_calls(cancel: Callable[[], None]) -> Iterator[None]:
    """Within the block the first Ctrl-C calls `cancel`; the next raises KeyboardInterrupt as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.getsignal(signal.SIGINT)

    def first(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancel()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
