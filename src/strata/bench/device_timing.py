"""Times of a card's work by graph replay, and what its memories give. Needs a GPU and Triton; knows no op."""
# mypy: allow-untyped-defs, no-check-untyped-defs

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
import triton
import triton.language as tl

REPEATS = 15
BLOCKS = (1024, 2048, 4096, 8192)  # words a program


@triton.jit
def fetch_kernel(source, target, count, BLOCK: tl.constexpr):
    """The simplest reader: copy int32 words."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


@triton.jit
def read_kernel(source, target, BLOCK: tl.constexpr):
    """The simplest kernel that only reads: one word out of BLOCK words in."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + tl.program_id(0), tl.sum(tl.load(source + at), axis=0))


def seconds(calls: Sequence[Callable[[], object]], repeats: int = REPEATS) -> tuple[float, float]:
    """Median seconds of one call and the spread (90th less 10th percentile over the median) of replayed graphs.

    All calls go into one graph; give as many as are needed to read past the last-level cache.
    """
    graph = captured(calls)
    graph.replay()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) / 1e3 / len(calls) for begin, end in marks)
    middle = median(times)
    return middle, (times[len(times) * 9 // 10] - times[len(times) // 10]) / middle


def captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """All calls, made once and then captured into one graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):  # `torch.cuda.graph` would collect garbage first: 70 ms for each measurement
        graph.capture_begin()
        for call in calls:
            call()
        graph.capture_end()
    return graph


def device_rates_gb_per_s(size: int = 4 << 30, blocks: Sequence[int] = BLOCKS) -> tuple[float, float]:
    """The GPU's memory: bytes read plus bytes written of a copy, and bytes of the best plain read.

    `size` is far beyond the last-level cache, so that nothing is read twice from it. The copy is a kernel: what a graph
    makes of `copy_` goes over a copy engine, which does two thirds of it.
    """
    source = torch.randint(0, 2**31 - 1, (size // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    copied, read = [], []
    for block in blocks:
        grid = (source.numel() // block,)
        copy = partial(fetch_kernel[grid], source, target, source.numel(), BLOCK=block)
        copied.append(seconds([copy], 5)[0])
        read.append(seconds([partial(read_kernel[grid], source, target, BLOCK=block, num_warps=8)], 5)[0])
    return 2 * size / min(copied) / 1e9, size / min(read) / 1e9


def host_rates_gb_per_s(pinned: torch.Tensor) -> tuple[float, float]:
    """Copying pinned memory to the GPU, and reading it in place by the simplest kernel."""
    words = pinned.view(torch.int32)
    target = torch.empty(words.shape, dtype=torch.int32, device="cuda")
    copied = seconds([lambda: target.copy_(words, non_blocking=True)], 5)[0]
    grid = (triton.cdiv(words.numel(), 2048),)
    fetched = seconds([lambda: fetch_kernel[grid](words, target, words.numel(), BLOCK=2048)], 5)[0]
    return pinned.numel() / copied / 1e9, pinned.numel() / fetched / 1e9
