"""What a pool's threads get from this machine: memory read, integers multiplied. Knows no weights."""

import ctypes

import torch

from strata.native import library
from strata.native.pool import Pool


def read_seconds(pool: Pool, bytes_: torch.Tensor) -> float:
    """Seconds to read a contiguous tensor once with all threads of the pool, nothing else done with it."""
    if not bytes_.is_contiguous() or bytes_.device.type != "cpu":
        raise ValueError("what is read must be contiguous and in main memory")
    seconds = ctypes.c_double()
    size = bytes_.numel() * bytes_.element_size()
    library.check(library.load().strata_read_memory(pool.handle, bytes_.data_ptr(), size, ctypes.byref(seconds)))
    return seconds.value


def multiply_rate(pool: Pool, rounds: int = 300_000) -> float:
    """Multiply-adds a second of all threads in the integer dot product alone; about a millisecond of it."""
    rate = ctypes.c_double()
    library.check(library.load().strata_multiply_rate(pool.handle, rounds, ctypes.byref(rate)))
    return rate.value
