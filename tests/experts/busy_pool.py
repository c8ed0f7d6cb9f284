"""A pool whose threads do something else: now and then, or for a while. Knows no test."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from strata.native.memory import multiply_rate, read_seconds
from strata.native.pool import Pool


@contextmanager
def slowed(pool: Pool) -> Iterator[None]:
    """Another user takes the pool's threads again and again, for longer than a request does."""
    memory, is_over = torch.zeros(8 << 20, dtype=torch.uint8), threading.Event()

    def take() -> None:
        while not is_over.wait(0.0005):
            read_seconds(pool, memory)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        yield
    finally:
        is_over.set()
        taker.join()


def stick(pool: Pool, seconds: float) -> threading.Thread:
    """From now on the pool's threads do something else, for about so long."""
    rounds = 10_000_000
    begin = time.perf_counter()
    multiply_rate(pool, rounds)
    rounds = int(rounds * seconds / (time.perf_counter() - begin))
    thread = threading.Thread(target=multiply_rate, args=(pool, rounds))
    thread.start()
    time.sleep(0.15)  # a busy PC takes a while to give it a core
    return thread
