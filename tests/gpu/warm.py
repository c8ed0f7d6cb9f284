"""Kernels on tiny inputs, one call each, so that processes can share their compilation."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial

import torch

from strata.kernels.compiled import settle_keys
from strata.kernels.configurations import packed_launch
from strata.kernels.launch_shapes import ROW_BUCKETS, LaunchShape
from tests.gpu.chain_candidates import Chain
from tests.gpu.weights import HIDDEN, KIND, blob_layout, random_blobs, random_dense
from tests.kernels.joined_cases import filled

COMPILERS = 14


def run_part(
    mixture: tuple[str, str], part: str, launch: LaunchShape | None, is_in_place: bool = False, rows: int = 1
) -> None:
    """One call of a bench of experts; without `launch` the table's."""
    from strata.kernels.expert_rows.work import ExpertBlobs
    from tests.gpu.benches import Bench

    blobs = random_blobs(blob_layout(*mixture), 4)
    if is_in_place:
        blobs = ExpertBlobs.in_place(blobs.layout, blobs.memory.cpu().pin_memory(), torch.device("cuda"))
    Bench.all_rows(blobs, 2, launch.rows if launch else rows).calls(part, launch).functions[0]()


def run_dense(kind: str, launch: LaunchShape) -> None:
    """One call of a dense matrix."""
    from strata.kernels.packed_rows.triton import packed_rows

    matrix = random_dense(KIND[kind].layout(32, HIDDEN))
    packed_rows(matrix, torch.randn(launch.rows, HIDDEN, device="cuda"), launch)


def run_chain(chain: Chain, rows: int, launches: Sequence[LaunchShape]) -> None:
    """One call of a chain's kernel, and of the one that quantizes its rows."""
    from strata.kernels.packed_rows import joined, room_for

    device, layouts = torch.device("cuda"), chain.layouts(64)
    x = torch.randn(rows, chain.columns, device=device)
    room = filled(x, room_for(layouts, rows, device, launch=launches[-1]))
    out = torch.empty(rows, sum(layout.rows for layout in layouts), device=device)
    joined.multiply_into([random_dense(layout) for layout in layouts], room, out, launches)


def compile_side_by_side(jobs: Sequence[Callable[[], None]]) -> list[str]:
    """Run them, by as many processes as there are cores; what failed comes back as sentences.

    To be called before this process launches a kernel, so that it finds what they compiled.
    """
    settle_keys()
    processes = max(1, min(COMPILERS, (os.cpu_count() or 2) - 2))
    with multiprocessing.get_context("spawn").Pool(processes, initializer=settle_keys) as pool:
        return [sentence for sentence in pool.map(_run, jobs, chunksize=1) if sentence]


def _run(job: Callable[[], None]) -> str:
    try:
        job()
        torch.cuda.synchronize()
    except Exception as reason:
        return f"{job}: {type(reason).__name__}: {reason}"[-300:]
    return ""


def speed_kernels(is_smoke: bool) -> list[Callable[[], None]]:
    """At least one call for each kernel of the speed table."""
    from tests.gpu.speeds import DENSE_KINDS, IN_PLACE, MIXTURES

    device = torch.cuda.get_device_name()
    jobs: list[Callable[[], None]] = []
    for mixture in MIXTURES[: 1 if is_smoke else None]:
        for rows in ROW_BUCKETS:
            jobs += [partial(run_part, mixture, part, None, rows=rows) for part in ("gate+up", "down")]
    jobs += [partial(run_part, IN_PLACE, "gate+up", None, True, rows) for rows in (1, 8)]
    for outputs, kinds in DENSE_KINDS.items():
        for kind in kinds:
            layout = KIND[kind].layout(outputs, HIDDEN)
            launches = {packed_launch(device, layout, rows): None for rows in ROW_BUCKETS}
            jobs += [partial(run_dense, kind, launch) for launch in launches]
    return jobs
