"""The kernels of the speed table on tiny inputs, one call each, so that processes can share their compilation."""

from collections.abc import Callable
from functools import partial

import torch

from strata.kernels.configurations import LaunchShape
from tests.gpu.speeds import (
    DENSE_ROWS,
    HIDDEN,
    KIND,
    LAUNCHES,
    MIXTURES,
    Bench,
    blob_layout,
    dense_launch,
    random_blobs,
    random_dense,
)


def run_part(mixture: tuple[str, str], part: str, launch: LaunchShape, is_in_place: bool = False) -> None:
    """One call of a bench."""
    from strata.kernels.expert_rows.work import ExpertBlobs

    blobs = random_blobs(blob_layout(*mixture), 4)
    if is_in_place:
        blobs = ExpertBlobs.in_place(blobs.layout, blobs.memory.cpu().pin_memory(), torch.device("cuda"))
    _, calls = Bench(blobs, 2, launch.rows).calls(part, launch)
    calls[0]()


def run_dense(kind: str, launch: LaunchShape) -> None:
    """One call of a dense matrix."""
    from strata.kernels.packed_rows.triton import packed_rows

    matrix = random_dense(KIND[kind].layout(32, HIDDEN))
    packed_rows(matrix, torch.randn(launch.rows, HIDDEN, device="cuda"), launch)


def speed_kernels(is_smoke: bool) -> list[Callable[[], None]]:
    """As many calls as there are compilations, a few double."""
    jobs: list[Callable[[], None]] = []
    for index, mixture in enumerate(MIXTURES):
        for launch in LAUNCHES if index == 0 else LAUNCHES[1:2]:
            parts = ("gate+up",) if mixture[0] == mixture[1] else ("gate+up", "down")
            jobs += [partial(run_part, mixture, part, launch) for part in parts]
    jobs += [partial(run_part, MIXTURES[0], "gate+up", LaunchShape(rows=rows)) for rows in (2, 4, 8)]
    jobs += [partial(run_part, MIXTURES[0], "gate+up", launch, True) for launch in LAUNCHES[:3]]
    for kind in ("q8_0", "bf16", "q4_0"):
        launches = {dense_launch(kind, rows): None for rows in DENSE_ROWS}
        jobs += [partial(run_dense, kind, launch) for launch in launches]
    return jobs
