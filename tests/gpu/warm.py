"""Kernels on tiny inputs, one call each, so that processes can share their compilation."""

from collections.abc import Callable
from functools import partial

import torch

from strata.kernels.configurations import packed_launch
from strata.kernels.launch_shapes import ROW_BUCKETS, LaunchShape
from tests.gpu.weights import HIDDEN, KIND, blob_layout, random_blobs, random_dense


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
