"""Times of GPU work by graph replay, and the ceilings of this machine. Knows no kernel of the product."""

from collections.abc import Callable, Sequence
from statistics import median

import torch
import triton
import triton.language as tl

REPEATS = 15


@triton.jit
def fetch_kernel(source, target, count, BLOCK: tl.constexpr):
    """The simplest reader: copy int32 words."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


def seconds(calls: Sequence[Callable[[], object]], repeats: int = REPEATS) -> tuple[float, float]:
    """Median seconds of one call and the spread (90th less 10th percentile over the median) of replayed graphs.

    All calls go into one graph; give as many as are needed to read past the last-level cache.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
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


def device_copy_gb_per_s(size: int = 2 << 30) -> float:
    """Bytes read plus bytes written of a large copy in the GPU's memory."""
    source = torch.randint(0, 2**31 - 1, (size // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / seconds([lambda: target.copy_(source)])[0] / 1e9


def host_rates_gb_per_s(pinned: torch.Tensor) -> tuple[float, float]:
    """Copying pinned memory to the GPU, and reading it in place by the simplest kernel."""
    words = pinned.view(torch.int32)
    target = torch.empty(words.shape, dtype=torch.int32, device="cuda")
    copied = seconds([lambda: target.copy_(words, non_blocking=True)], 5)[0]
    grid = (triton.cdiv(words.numel(), 2048),)
    fetched = seconds([lambda: fetch_kernel[grid](words, target, words.numel(), BLOCK=2048)], 5)[0]
    return pinned.numel() / copied / 1e9, pinned.numel() / fetched / 1e9
