"""Memory that one large request took, given back to the system. Knows the C library; no request."""

import ctypes
import functools
import sys
from typing import Any

LARGE_BYTES = 256 << 10  # of a text: smaller ones leave little behind, and giving back takes milliseconds


def give_back(bytes_of_text: int) -> None:
    """Let the C library return what it keeps free, if the text just worked on was a large one.

    glibc keeps freed memory of a thread for that thread; a text's tokens take hundreds of its own bytes each while the
    library makes them. Other systems return memory by themselves.
    """
    trim = _trim()
    if bytes_of_text >= LARGE_BYTES and trim is not None:
        trim(0)


@functools.cache
def _trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
