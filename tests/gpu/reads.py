"""`python -m tests.gpu.reads`: are the bits of the kernels of reads right on this GPU, and how fast are they?

For people with an NVIDIA GPU; two minutes. The gate (read_gate.py) runs in processes side by side; speeds beside
torch's bf16 product of the same shapes come only if all of it holds. Knows no check.
"""

import argparse
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch

from strata.kernels.read_experts import (
    ReadExperts,
    ReadWork,
    combine_ranks,
    experts_down,
    experts_hidden,
    group_places,
    most_row_tiles,
    route_many,
)
from strata.kernels.read_products import read_products
from tests.gpu.read_gate import jobs
from tests.gpu.weights import HIDDEN, KIND, blob_layout, random_blobs, random_dense

PROCESSES = 14
EXPERTS, RANKS = 512, 10
DENSE = ((16384, 2560), (2560, 6144), (1280, 2560), (2560, 640), (324, 10240), (10240, 320))
FEWEST, MIDDLE, MOST = 10, 75, 3594  # rows of an expert in a skewed read of 8,192 rows


def attempt(number: int) -> str:
    """In a process of its own: job `number` of the gate; what failed as a sentence."""
    job = jobs()[number]
    try:
        job()
    except Exception as reason:
        return f"{job}: {type(reason).__name__}: {reason}"[-600:]
    return ""


def seconds(calls: Sequence[Callable[[], object]], turns: int = 5, repeats: int = 6) -> list[float]:
    """Median seconds of each call over turns A B .. A B .., each turn `repeats` launches."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for call, its_times in zip(calls, times, strict=True):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(repeats):
                call()
            end.record()
            end.synchronize()
            its_times.append(begin.elapsed_time(end) / repeats / 1e3)
    return [median(its_times) for its_times in times]


def line(name: str, operations: float, ours: float, torchs: float) -> None:
    """Print one row of the table."""
    print(
        f"{name:44} {ours * 1e6:8.0f} us {operations / ours / 1e12:6.0f} TFLOP/s"
        f"   torch.mm {torchs * 1e6:8.0f} us {operations / torchs / 1e12:6.0f}   ratio {torchs / ours:.2f}",
        flush=True,
    )


def bf16(*shape: int) -> torch.Tensor:
    """Normal values on the GPU."""
    return torch.randn(shape, device="cuda").to(torch.bfloat16)


def time_dense(rows: int, kind: str) -> None:
    """Matrices of the published model."""
    for outputs, columns in DENSE:
        if columns % KIND[kind].step:
            continue
        matrix, x, weights = (
            random_dense(KIND[kind].layout(outputs, columns)),
            bf16(rows, columns),
            bf16(outputs, columns),
        )
        out = torch.empty(rows, outputs, dtype=torch.bfloat16, device="cuda")
        ours, torchs = seconds([partial(read_products, [matrix], x, out), partial(torch.mm, x, weights.T, out=out)])
        line(f"{kind} {outputs} x {columns}, {rows} rows", 2.0 * rows * outputs * columns, ours, torchs)


def time_experts(rows: int, kind: str, counts: torch.Tensor, name: str) -> None:
    """A layer's experts, all of them resident, in two launches."""
    layout, places = blob_layout(kind, kind), rows * RANKS
    width, blobs = layout.gate.rows, random_blobs(layout, EXPERTS)
    addresses = torch.arange(EXPERTS, device="cuda") * layout.total_bytes + blobs.memory.data_ptr()
    experts = ReadExperts(layout, addresses, torch.arange(EXPERTS, dtype=torch.int32, device="cuda"))
    flat = torch.repeat_interleave(torch.arange(EXPERTS), counts)
    ids = flat[torch.randperm(places)].view(rows, RANKS).int().cuda()
    work, most = ReadWork.empty(places, EXPERTS, "cuda"), most_row_tiles(places, EXPERTS)
    group_places(ids, work)
    x, hidden, by_rank = bf16(rows, HIDDEN), bf16(places, width), bf16(rows, RANKS, HIDDEN)
    gate_up, down, wide, out = (
        bf16(2 * width, HIDDEN),
        bf16(HIDDEN, width),
        bf16(places, HIDDEN),
        bf16(places, 2 * width),
    )
    operations = 2.0 * places * HIDDEN * width
    ours, torchs = seconds(
        [partial(experts_hidden, experts, x, work, most, hidden), partial(torch.mm, wide, gate_up.T, out=out)]
    )
    line(f"{kind} gate, up and silu, {name}", 2 * operations, ours, torchs)
    ours, torchs = seconds(
        [partial(experts_down, experts, hidden, work, most, by_rank), partial(torch.mm, hidden, down.T, out=wide)]
    )
    line(f"{kind} down, {name}", operations, ours, torchs)


def skewed_counts(places: int) -> torch.Tensor:
    """Rows of every expert: FEWEST at least, MIDDLE in the middle, MOST at most, `places` together."""
    share = torch.linspace(0, 1, EXPERTS, dtype=torch.float64)
    scale = places / 81920

    def counts(bend: float) -> torch.Tensor:
        low = math.log(FEWEST) + math.log(MIDDLE / FEWEST) * share / 0.5
        high = math.log(MIDDLE) + math.log(MOST / MIDDLE) * ((share - 0.5).clamp(min=0) / 0.5) ** bend
        return (torch.where(share < 0.5, low, high).exp() * scale).round().long()

    least, most = 0.2, 20.0
    for _ in range(60):
        bend = (least + most) / 2
        least, most = (bend, most) if counts(bend).sum() > places else (least, bend)
    found = counts(most)
    found[-1] += places - found.sum()
    return found[torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(2))]


def drawn_counts(rows: int) -> torch.Tensor:
    """Rows of every expert where each row draws its own, all alike."""
    drawn = torch.rand(rows, EXPERTS, generator=torch.Generator().manual_seed(1)).topk(RANKS, dim=1).indices
    return drawn.flatten().bincount(minlength=EXPERTS)


def time_rows(rows: int) -> None:
    """What a layer does beside the products."""
    logits, ids = torch.randn(rows, EXPERTS, device="cuda"), torch.zeros(rows, RANKS, dtype=torch.int32, device="cuda")
    weights, work = torch.zeros(rows, RANKS, device="cuda"), ReadWork.empty(rows * RANKS, EXPERTS, "cuda")
    by_rank, out = bf16(rows, RANKS, HIDDEN), torch.empty(rows, HIDDEN, device="cuda")
    calls = [
        partial(route_many, logits, True, ids, weights),
        partial(group_places, ids, work),
        partial(combine_ranks, by_rank, weights, None, None, out),
    ]
    for name, taken in zip(("route_many", "group_places", "combine_ranks"), seconds(calls), strict=True):
        print(f"{name:44} {taken * 1e6:8.0f} us", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8192, help="of a chunk (default: 8192)")
    options = parser.parse_args()
    count = len(jobs())
    with multiprocessing.get_context("spawn").Pool(min(PROCESSES, os.cpu_count() or 1)) as pool:
        failed = [sentence for sentence in pool.imap_unordered(attempt, range(count)) if sentence]
    print("\n".join(failed) or f"gate: {count} jobs, every bit is right", flush=True)
    if failed:
        return 1
    places = options.rows * RANKS
    even = torch.full((EXPERTS,), places // EXPERTS)
    even[: places % EXPERTS] += 1
    for kind in ("q4_0", "q8_0", "nvfp4"):
        time_experts(options.rows, kind, even, f"{places // EXPERTS} rows an expert")
        time_experts(options.rows, kind, drawn_counts(options.rows), "drawn")
        time_experts(options.rows, kind, skewed_counts(places), "skewed")
    for kind in ("q4_0", "q8_0", "bf16"):
        time_dense(options.rows, kind)
    time_rows(options.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
