"""Every kernel with every number of rows: what is run once to warm up, and what must then compile nothing.

Knows which integers vary while a model runs: rows, places, lists of experts, and the sizes of its matrices. Needs
Triton; runs on a GPU, or anywhere with launches that do nothing.
"""

from functools import cache

import torch

from strata.kernels.combine.triton import combine_rows
from strata.kernels.expert_rows.triton import expert_rows
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.launch_shapes import ROW_BUCKETS
from strata.kernels.packed_rows.triton import packed_rows
from strata.quant.layout import BlobLayout
from strata.quant.packed import PackedMatrix
from tests.kernels.random_matrices import (
    KINDS,
    Experts,
    Kind,
    on_device,
    random_choices,
    random_experts,
    random_matrix,
    random_rows,
    work_on,
)

KIND = {kind.name: kind for kind in KINDS}
DENSE = ("q4_0", "bf16")
MOST_ROWS = 40
FIRST_SIZES = ((48, 64), (6416, 32))  # outputs, columns: of few tiles and of many
OTHER_SIZES = ((17, 96), (160, 320), (6401, 64))
EXPERTS, RANKS = 6, 3


def warm_up(device: torch.device, buckets: tuple[int, ...] = ROW_BUCKETS) -> None:
    """Each kernel once for each bucket of rows."""
    for rows in buckets:
        for kind in DENSE:
            for size in FIRST_SIZES:
                _dense(kind, size, rows, device)
        _experts(rows, device)
        _combine(rows, 64, device)


def run_every_count(device: torch.device) -> None:
    """Every number of rows, other sizes, other lists of experts."""
    for rows in range(1, MOST_ROWS + 1):
        for kind in DENSE:
            for size in (*FIRST_SIZES, *OTHER_SIZES):
                _dense(kind, size, rows, device)
        _experts(rows, device)
        _combine(rows, 33 + rows, device)


@cache
def _matrix(kind: Kind, size: tuple[int, int], device: torch.device) -> PackedMatrix:
    return on_device(random_matrix(1, kind.layout(*size)), device)


@cache
def _blobs(device: torch.device) -> Experts:
    layout = BlobLayout(KIND["q4_0"].layout(32, 96), KIND["q4_0"].layout(32, 96), KIND["q8_0"].layout(96, 32))
    return random_experts(1, layout, EXPERTS)


def _dense(kind: str, size: tuple[int, int], rows: int, device: torch.device) -> None:
    packed_rows(_matrix(KIND[kind], size, device), random_rows(rows, rows, size[1]).to(device))


def _experts(rows: int, device: torch.device) -> None:
    choices = random_choices(rows, rows, RANKS, EXPERTS)
    work, x = work_on(device, choices), random_rows(rows, rows, 96).to(device)
    expert_rows(_blobs(device).moved(device), work, x, torch.empty(rows, RANKS, 96, device=device))
    only = ExpertWork(work.seats[1:], work.starts[1:], work.places, work.rows, RANKS, work.most_rows)  # a later start
    expert_rows(_blobs(device).moved(device), only, x, torch.empty(rows, RANKS, 96, device=device))


def _combine(rows: int, hidden: int, device: torch.device) -> None:
    values, weights = torch.zeros(rows, RANKS, hidden, device=device), torch.zeros(rows, RANKS, device=device)
    shared, mask = torch.zeros(rows, hidden, device=device), torch.ones(rows, RANKS, dtype=torch.bool, device=device)
    combine_rows(values, weights, mask, shared, weights[:, 0].contiguous())
