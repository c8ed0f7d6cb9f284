"""What the CPU's threads and the link to a card get through: alone, and both at once, each with experts as windows ask
for them.

Knows experts in main memory and how long things take; knows neither who computes them on a card nor what becomes of
the rates. A second or less while a model is loaded.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from strata.experts.cache import ExpertId
from strata.experts.pool import ExpertList, ExpertPool, ExpertRows
from strata.experts.share import FixedCosts, Rates, rate_beside, without_fixed_cost
from strata.experts.store import ExpertStore
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout

PART_S = 0.03  # of each measurement
PASSES = 5  # of all measurements, one after another
SINGLES_S = 0.01  # of each measurement of single experts
FIRST_BYTES = 32 << 20  # with which a side is warmed up and its rate guessed
MOST_LISTED = 1 << 30  # bytes of different experts for both sides together: more than caches hold
MOST_LISTS = 128
Found = TypeVar("Found")


@dataclass(frozen=True)
class ListedExperts:
    """Different experts of one layer in main memory, as one row might ask for them."""

    layer: int
    layout: BlobLayout
    blobs: Sequence[torch.Tensor]  # uint8 [layout.total_bytes] each

    @property
    def total_bytes(self) -> int:
        """What is read for a row."""
        return len(self.blobs) * self.layout.total_bytes


def listed_experts(store: ExpertStore, ranks: int) -> list[ListedExperts]:
    """Lists of `ranks` experts, none in two of them, of layers that are spread over the model.

    Of fewer experts where no layer has so many in main memory. Raises ValueError if there is none.
    """
    listed = min(ranks, int((store.in_ram != 0).sum(axis=1).max()))
    if not listed:
        raise ValueError("no expert is in main memory, so there is nothing to measure with")
    chosen: list[tuple[int, list[int]]] = []
    order = np.random.default_rng(0)
    for layer, in_ram in enumerate(store.in_ram):
        experts = order.permutation(np.flatnonzero(in_ram)).tolist()
        chosen += [(layer, experts[at : at + listed]) for at in range(0, len(experts) - listed + 1, listed)]
    count = min(len(chosen), MOST_LISTS, 1 + MOST_LISTED // (listed * int(store.blob_bytes.min())))
    return [_listed(store, *chosen[n * len(chosen) // count]) for n in range(count)]


def one_by_one(lists: Sequence[ListedExperts]) -> list[ListedExperts]:
    """The same experts, each in a list of its own."""
    return [ListedExperts(each.layer, each.layout, [blob]) for each in lists for blob in each.blobs]


def _listed(store: ExpertStore, layer: int, experts: Sequence[int]) -> ListedExperts:
    places = [store.place(ExpertId(layer, expert)) for expert in experts]
    return ListedExperts(layer, store.layout(layer), [place for place in places if place is not None])


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
    """Rates of both sides, in about three times `part_s` for each of PASSES passes. See `typical_best`."""
    for _ in range(2):  # the first time warms both up
        cpu_guess, link_guess = _rate(cpu.run(FIRST_BYTES)), _rate(_read(link, FIRST_BYTES))
    cpu_bytes, link_bytes = _bytes_in(cpu_guess, part_s), _bytes_in(link_guess, part_s)
    cpu_alone, link_alone, both = [], [], []
    for _ in range(PASSES):
        cpu_alone.append(_rate(cpu.run(cpu_bytes)))
        link_alone.append(_rate(_read(link, link_bytes)))
        link.start(link_bytes)
        of_cpu = cpu.run(cpu_bytes)
        both.append((of_cpu, link.wait()))
    alone = typical_best(cpu_alone, float), typical_best(link_alone, float)
    beside = [rates_beside(*alone, *sides) for sides in both]
    return typical_best(beside, lambda found: found.cpu_beside + found.link_beside)


def measure_costs(rates: Rates, single: CpuSide, lists: Sequence[ListedExperts]) -> tuple[Rates, FixedCosts]:
    """`rates`, measured with requests of these lists, as they are beside what each request costs; and what it costs.

    single: computes the same experts one by one. Takes PASSES times SINGLES_S.
    """
    single.run(FIRST_BYTES)
    size = _bytes_in(rates.cpu_alone, SINGLES_S)
    single_rate = typical_best([_rate(single.run(size)) for _ in range(PASSES)], float)
    experts = sum(len(each.blobs) for each in lists)
    return without_fixed_cost(
        rates, single_rate, sum(each.total_bytes for each in lists) / experts, experts // len(lists)
    )


def typical_best(found: Sequence[Found], key: Callable[[Found], float]) -> Found:
    """The second best of at least two measurements of the same.

    Whatever else the PC does only lowers a rate: a median would still be wrong where most passes were disturbed. The
    best of all may be a clock's error.
    """
    return sorted(found, key=key)[-2]


def rates_beside(cpu_alone: float, link_alone: float, cpu: tuple[int, float], link: tuple[int, float]) -> Rates:
    """Rates from what both did from the same moment on, each (bytes, seconds)."""
    cpu_beside = rate_beside(cpu_alone, *cpu, link[1])
    link_beside = rate_beside(link_alone, *link, cpu[1])
    return Rates(cpu_alone, link_alone, min(cpu_alone, max(1.0, cpu_beside)), min(link_alone, max(1.0, link_beside)))


class PoolSide:
    """See `CpuSide`: lists one after another, so that no expert is still in a cache when it comes again."""

    def __init__(self, lists: Sequence[ListedExperts], pool: Pool) -> None:
        """lists: at least one; layers of one hidden size."""
        columns, most = lists[0].layout.gate.columns, max(len(each.blobs) for each in lists)
        row, slots = torch.zeros(1, dtype=torch.int32), torch.arange(most, dtype=torch.int32)
        pools = {each.layout: ExpertPool(pool, each.layout) for each in lists}
        self._pool = pool
        self.x = torch.randn(1, columns, generator=torch.Generator().manual_seed(0))
        self.out = torch.empty(most, columns)
        self._requests = itertools.cycle(
            (
                each.total_bytes,
                pools[each.layout],
                ExpertList(each.layout, [ExpertRows(blob, row, slots[n : n + 1]) for n, blob in enumerate(each.blobs)]),
            )
            for each in lists
        )

    def run(self, bytes_: int) -> tuple[int, float]:
        """See `CpuSide`."""
        requests, taken = [], 0
        while taken < bytes_:
            requests.append(next(self._requests))
            taken += requests[-1][0]
        with self._pool.held_awake():
            begin = time.perf_counter()
            for _, experts, request in requests:
                experts.compute_list(request, self.x, self.out)
            return taken, time.perf_counter() - begin


class CardSide:
    """See `LinkSide`: a card that computes experts where they lie in pinned memory."""

    def __init__(self, read: Callable[[], None], read_bytes: int, device: torch.device) -> None:
        """read: launches on the current stream what reads so many bytes, and returns."""
        self._launch, self._bytes = read, read_bytes
        self._stream = torch.cuda.current_stream(device)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._started = 0

    def start(self, bytes_: int) -> None:
        """See `LinkSide`."""
        times = max(1, -(-bytes_ // self._bytes))
        self._begin.record(self._stream)
        for _ in range(times):
            self._launch()
        self._end.record(self._stream)
        self._started = times * self._bytes

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
