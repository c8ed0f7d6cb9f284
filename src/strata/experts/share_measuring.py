"""What the CPU's threads and the link to a card get through while a model is loaded: alone, and both at once.

Knows experts in main memory and how long things take; what becomes of the rates is `share`'s matter. A second or less.
"""

import itertools
import time
from typing import Protocol

import torch

from strata.experts.cache import ExpertId
from strata.experts.pool import ExpertList, ExpertPool, ExpertRows
from strata.experts.share import Rates
from strata.experts.store import ExpertStore
from strata.native.pool import Pool

PART_S = 0.08  # of each of the three measurements
MISSES = 8  # experts of a request
MOST_SCRATCH = 16 << 20  # bytes of the card's memory that are written to: there is little left when this is measured
FIRST_BYTES = 32 << 20  # with which a side is warmed up and its rate guessed


class CpuSide(Protocol):
    """Experts computed by the CPU's threads."""

    def run(self, bytes_: int) -> tuple[int, float]:
        """Compute experts of about so many bytes; how many bytes they were, and seconds."""
        ...


class LinkSide(Protocol):
    """Experts read over the link."""

    def start(self, bytes_: int) -> None:
        """Begin to read about so many bytes, and return."""
        ...

    def wait(self) -> tuple[int, float]:
        """How many bytes were read, and seconds from the start of reading to its end."""
        ...


def measure_rates(cpu: CpuSide, link: LinkSide, part_s: float = PART_S) -> Rates:
    """Rates of both sides, in about four times `part_s`."""
    for _ in range(2):  # the first time warms both up
        cpu_guess, link_guess = _rate(cpu.run(FIRST_BYTES)), _rate(_read(link, FIRST_BYTES))
    cpu_alone = _rate(cpu.run(_bytes_in(cpu_guess, part_s)))
    link_alone = _rate(_read(link, _bytes_in(link_guess, part_s)))
    link.start(_bytes_in(link_alone, part_s))
    of_cpu = cpu.run(_bytes_in(cpu_alone, part_s))
    return rates_beside(cpu_alone, link_alone, of_cpu, link.wait())


def rates_beside(cpu_alone: float, link_alone: float, cpu: tuple[int, float], link: tuple[int, float]) -> Rates:
    """Rates from what both did from the same moment on, each (bytes, seconds): the later one ended alone."""
    together_s = min(cpu[1], link[1])

    def beside(side: tuple[int, float], alone: float) -> float:
        bytes_, seconds = side
        return min(alone, max(1.0, (bytes_ - alone * (seconds - together_s)) / together_s))

    return Rates(cpu_alone, link_alone, beside(cpu, cpu_alone), beside(link, link_alone))


class PoolSide:
    """See `CpuSide`: a store's experts one after another, so that none is still in a cache when it comes again."""

    def __init__(self, store: ExpertStore, pool: Pool) -> None:
        """Raises ValueError if no expert is in main memory."""
        layer = int((store.in_ram != 0).sum(axis=1).argmax())
        layout = store.layout(layer)
        places = [store.place(ExpertId(layer, expert)) for expert in range(store.experts)]
        blobs = [place for place in places if place is not None]
        if not blobs:
            raise ValueError("no expert is in main memory, so there is nothing to measure the CPU with")
        row = torch.zeros(1, dtype=torch.int32)
        slots = torch.arange(MISSES, dtype=torch.int32)
        self._blob_bytes = layout.total_bytes
        self._pool, self._experts = pool, ExpertPool(pool, layout)
        self._x = torch.zeros(1, layout.gate.columns)
        self._out = torch.empty(MISSES, layout.gate.columns)
        self._requests = itertools.cycle(
            ExpertList(layout, [ExpertRows(blob, row, slots[n : n + 1]) for n, blob in enumerate(part)])
            for part in (blobs[begin : begin + MISSES] for begin in range(0, len(blobs), MISSES))
        )

    def run(self, bytes_: int) -> tuple[int, float]:
        """See `CpuSide`."""
        requests, taken = [], 0
        while taken < bytes_:
            requests.append(next(self._requests))
            taken += requests[-1].count * self._blob_bytes
        with self._pool.held_awake():
            begin = time.perf_counter()
            for request in requests:
                self._experts.compute_list(request, self._x, self._out)
            return taken, time.perf_counter() - begin


class CopyingLink:
    """See `LinkSide`: copies of pinned memory to a card, which take as long as reading it in place does.

    On an H200 machine 53.4 GB/s against 51.3 (docs/log.md, 2026-11-30); refining finds what is left of the difference.
    """

    def __init__(self, source: torch.Tensor, device: torch.device) -> None:
        """source: pinned, uint8."""
        self._source = source[:MOST_SCRATCH]
        self._target = torch.empty(self._source.numel(), dtype=torch.uint8, device=device)
        self._stream = torch.cuda.current_stream(device)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._started = 0

    def start(self, bytes_: int) -> None:
        """See `LinkSide`."""
        copies = max(1, -(-bytes_ // self._source.numel()))
        self._begin.record(self._stream)
        for _ in range(copies):
            self._target.copy_(self._source, non_blocking=True)
        self._end.record(self._stream)
        self._started = copies * self._source.numel()

    def wait(self) -> tuple[int, float]:
        """See `LinkSide`."""
        self._end.synchronize()
        return self._started, self._begin.elapsed_time(self._end) / 1e3


def _read(link: LinkSide, bytes_: int) -> tuple[int, float]:
    link.start(bytes_)
    return link.wait()


def _rate(done: tuple[int, float]) -> float:
    return done[0] / max(done[1], 1e-9)


def _bytes_in(rate: float, seconds: float) -> int:
    return max(1, int(rate * seconds))
