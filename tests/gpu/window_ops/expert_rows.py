"""A layer's experts over given buffers on a GPU, the shared one among them: bits, then times.

The issue's counts: 10, 40 and 160 experts of one row, 2,560 x 640 at 4.5 bits, gate, up, hidden and down.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from strata.kernels.expert_rows import ExpertBuffers, SharedExpert, expert_rows_into
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.launch_shapes import dp4a_launch, listed_launch
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.rows_out import RowsOut
from tests.gpu.benches import Bench
from tests.gpu.weights import HIDDEN, KIND, WIDTH, blob_layout, random_blobs, random_dense
from tests.kernels.joined_cases import ExpertsCase, filled

COUNTS = (10, 40, 160)
WINDOWS = (2, 8, 32)
RANKS = 10
SEATS = 1200  # 3.3 GB: far beyond the last-level cache
MIXED = (  # for experts of one row beside others of several: every constant that a launch decides
    listed_launch(2, 1, 1, 96, alone=3, tiles=4),
    listed_launch(4, 1, 1, 128, alone=2, tiles=2),
    listed_launch(4, 1, 2, 168, alone=1),
    listed_launch(8, 1, 1, 168, alone=2),
)
LAUNCHES = (dp4a_launch(1, 1, 2, 128), dp4a_launch(1, 1, 5), dp4a_launch(1, 2, 2, 96), dp4a_launch(1, 2, 5, 128))


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Tiny sizes at every bucket with unused rows, published ones at some, every kind of mixture, other launches."""
    q4, q8 = ("q4_0", "q4_0", "q4_0"), ("q8_0", 64)
    for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        yield _case(ExpertsCase(q4, 96, 64, rows, q8, unused=rows // 3), device)
    for kinds, shared in (
        (("q4_0", "q4_0", "q8_0"), ("bf16", 37)),
        (("q4_k", "q4_k", "q6_k"), ("q8_0", 64)),
        (("mxfp4", "mxfp4", "mxfp4"), ("q8_0", 64)),
        (("q2_0", "q2_0", "q8_0"), ("q4_0", 64)),
        (("iq4_xs", "q3_k", "nvfp4"), None),
        (("bf16", "bf16", "f16"), ("q8_0", 64)),
        (("q4_0", "f32", "q4_0"), ("q4_0", 32)),
    ):
        for rows in (1, 5):
            yield _case(ExpertsCase(kinds, 256, 256, rows, shared), device)
    for rows in (1, 4, 32):
        yield _case(ExpertsCase(q4, HIDDEN, WIDTH, rows, ("q8_0", WIDTH), 0, RANKS, 24), device)
    for launch in LAUNCHES:
        yield _case(ExpertsCase(q4, 640, 320, 3, q8, launch=launch), device)
    for launch in MIXED:
        for kinds in (q4, ("q8_0",) * 3):
            yield _case(ExpertsCase(kinds, 1280, 512, 8, q8, 1, RANKS, 40, launch), device)
        yield _case(ExpertsCase(q4, HIDDEN, WIDTH, 6, ("q8_0", WIDTH), 0, RANKS, 24, launch), device)
    yield _case(ExpertsCase(("q4_k",) * 3, 256, 512, 8, q8, 1, RANKS, 40, MIXED[0]), device)
    yield _case(ExpertsCase(("bf16", "bf16", "q8_0"), 640, 320, 3, q8, launch=listed_launch(2, 1, 4, tiles=2)), device)


def _case(case: ExpertsCase, device: torch.device) -> tuple[str, Callable[[], None]]:
    return str(case), partial(case.check, device)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """The issue's counts whole, their parts and other launches for 10; with the shared expert; windows of many rows."""
    blobs = random_blobs(blob_layout("q4_0", "q4_0"), SEATS)
    for count in COUNTS:
        yield _whole(f"{count} experts", Bench.all_rows(blobs, count), device)
        yield _whole(f"{count} experts and the shared one", Bench.all_rows(blobs, count), device, has_shared=True)
    for count in COUNTS:
        for part in ("gate+up", "hidden", "gate+up+hidden", "down"):
            yield _part(part, count, Bench.all_rows(blobs, count), device)
    for launch in LAUNCHES:
        name = f"10 experts, w{launch.warps} u{launch.unroll} {launch.registers}"
        yield _whole(name, Bench.all_rows(blobs, RANKS), device, launch=launch)
    for rows in WINDOWS:
        yield _whole(f"{rows} rows that choose {RANKS} of 512", Bench.routed(blobs, rows), device, has_shared=True)


def _room(blobs: ExpertBlobs, rows: int, ranks: int, device: torch.device) -> tuple[RowsOut, ExpertBuffers]:
    shared_down = KIND["q8_0"].layout(HIDDEN, WIDTH)
    x = filled(torch.randn(rows, HIDDEN, device=device), room_for([blobs.layout.gate], rows, device))
    return x, ExpertBuffers.empty(blobs.layout, rows, ranks, device, shared_down)


def _whole(name: str, bench: Bench, device: torch.device, has_shared: bool = False, launch=None):
    """All launches of a layer's experts, on other experts in each of the calls that are timed together."""
    from strata.kernels.expert_rows import window

    rows, ranks = bench.choices[0].shape
    x, buffers = _room(bench.blobs, rows, ranks, device)
    downs = [random_dense(KIND["q8_0"].layout(HIDDEN, WIDTH)) for _ in bench.works]
    gate_up = torch.randn(rows, 2 * WIDTH, device=device)
    works = [with_all_entries(work, rows) for work in bench.works]

    def call() -> None:
        for work, down in zip(works, downs, strict=True):
            shared = SharedExpert(gate_up, down) if has_shared else None
            if launch is None:
                expert_rows_into(bench.blobs, work, x, buffers, shared)
            else:
                window.expert_rows_into(bench.blobs, work, x, buffers, shared, launch)

    size = bench.experts * bench.blobs.layout.total_bytes + has_shared * downs[0].layout.total_bytes
    return name, call, int(size * len(works))


def with_all_entries(work: ExpertWork, rows: int) -> ExpertWork:
    """The same work with an entry for every place, as a window has it; those that list nothing come last."""
    missing = rows * work.ranks - work.seats.numel()
    seats = torch.cat((work.seats, work.seats.new_zeros(missing)))
    starts = torch.cat((work.starts, work.starts[-1:].expand(missing)))
    return ExpertWork(seats, starts, work.places, work.rows, work.ranks, work.most_rows)


def _part(part: str, count: int, bench: Bench, device: torch.device) -> tuple[str, Callable[[], None], int]:
    """One launch for `count` experts of one row: of the two that the product makes, or of the three it might."""
    from strata.kernels.expert_rows import gate_up_hidden, triton, window

    blobs, layout = bench.blobs, bench.blobs.layout
    x, buffers = _room(blobs, 1, count, device)
    out = buffers.by_rank.view(count, -1)
    assert buffers.hidden.quantized is not None

    def call() -> None:
        for work in bench.works:
            if part == "gate+up":
                window.gate_up_into(blobs, work, x, buffers.gate_up)
            elif part == "hidden":
                window.hidden_into(WIDTH, work, buffers, None)
            elif part == "gate+up+hidden":
                gate_up_hidden.gate_up_hidden_into(blobs, work, x, buffers, None)
            else:
                task = triton.MatrixTask((triton.DOWN,), buffers.hidden.quantized, work.places, out)
                triton.run_matrix(blobs, work, task)

    both = 2 * layout.gate.total_bytes
    size = {"gate+up": both, "hidden": 12 * WIDTH, "gate+up+hidden": both, "down": layout.down.total_bytes}[part]
    return f"{count} experts: {part}", call, count * size * len(bench.works)
