"""A pool of threads: made, held awake, closed. Knows no work; what runs on it is called beside its data."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from strata.native import library
from strata.native.closing import Closing

# Decode windows leave 5 to 50 us between jobs and waking a sleeper costs 5 to 50 us more: 100 us bridges the gaps and
# burns at most that much after the last job.
SPIN_US = 100


class Pool(Closing):
    """`threads` threads that compute together, the calling one among them; 1 starts none.

    keeps_cores: its workers stay on the cores of the process's affinity mask, one to a physical core before siblings.
    One on the core of the thread that holds the pool awake moves to a free core: that thread's own affinity stays.
    A pool serves one job at a time; calls from several threads wait for each other.
    """

    _pool: ctypes.c_void_p | None = None

    def __init__(self, threads: int, *, keeps_cores: bool = True, spin_us: int = SPIN_US) -> None:
        made = ctypes.c_void_p()
        library.check(library.load().strata_pool_create(threads, int(keeps_cores), spin_us, ctypes.byref(made)))
        self._pool = made
        self.threads = threads

    @property
    def handle(self) -> ctypes.c_void_p:
        """What the functions of the C ABI take."""
        if self._pool is None:
            raise ValueError("the pool is closed")
        return self._pool

    @contextmanager
    def held_awake(self) -> Iterator[None]:
        """Inside the block idle threads spin and never sleep: around a window."""
        library.load().strata_pool_hold(self.handle)
        try:
            yield
        finally:
            library.load().strata_pool_release(self.handle)

    def close(self) -> None:
        """End the threads; harmless the second time."""
        pool, self._pool = self._pool, None
        if pool is not None:
            library.load().strata_pool_destroy(pool)
