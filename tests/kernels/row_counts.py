"""Every kernel with every number of rows: what is run once to warm up, and what must then compile nothing.

Knows which integers vary while a model runs: rows, places, lists of experts, and the sizes of its matrices. Needs
Triton; runs on a GPU, or anywhere with launches that do nothing.
"""

from functools import cache

import torch

from strata.kernels.expert_plan.collect import collect_rows
from strata.kernels.expert_plan.one_row import route_and_plan
from strata.kernels.expert_plan.plan import plan_experts
from strata.kernels.expert_plan.tables import LayerTables, Mailbox, PlannedWork, PlanState, RowScores
from strata.kernels.expert_rows import ExpertBuffers, SharedExpert, window
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.launch_shapes import ROW_BUCKETS, LaunchShape
from strata.kernels.packed_rows import joined
from strata.kernels.packed_rows.activations import quantize_rows
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.packed_rows.triton import packed_rows
from strata.kernels.router import Routes, SharedGate
from strata.kernels.router.triton import route_rows
from strata.quant.layout import BlobLayout
from strata.quant.packed import PackedMatrix
from tests.kernels.joined_cases import experts_into
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
from tests.kernels.window_cases import window_of

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
        _window(rows, 64, device)


def run_every_count(device: torch.device) -> None:
    """Every number of rows, other sizes, other lists of experts."""
    for rows in range(1, MOST_ROWS + 1):
        for kind in DENSE:
            for size in (*FIRST_SIZES, *OTHER_SIZES):
                _dense(kind, size, rows, device)
        _experts(rows, device)
        _window(rows, 17 + rows, device)


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
    experts_into(torch.empty(rows, RANKS, 96, device=device), _blobs(device).moved(device), work, x)
    only = ExpertWork(work.seats[1:], work.starts[1:], work.places, work.rows, RANKS, work.most_rows)  # a later start
    experts_into(torch.empty(rows, RANKS, 96, device=device), _blobs(device).moved(device), only, x)


def _window(rows: int, outputs: int, device: torch.device) -> None:
    """Router and shared gate and up, routes, experts with the shared one: a layer of experts over its buffers."""
    blobs, shared_down = _blobs(device).moved(device), _matrix(KIND["q8_0"], (96, 64), device)
    pair = [_matrix(KIND["f32"], (outputs, 96), device), _matrix(KIND["q8_0"], (128, 96), device)]
    plain = random_rows(rows, rows, 96).to(device)
    x = RowsOut(plain, quantize_rows(plain, LaunchShape()))
    out = torch.empty(rows, outputs + 128, device=device)
    joined.multiply_into(pair, x, out)
    routes = Routes.empty(rows, RANKS, device, has_shared_gate=True)
    gate = SharedGate(plain, torch.zeros(96, device=device))
    scores = RowScores(out[:, :EXPERTS], window_of([(0, rows)], rows, device=device), True, gate)
    route_rows(scores.logits, scores.rows, scores.normalize, routes, gate)
    buffers = ExpertBuffers(
        torch.empty(rows * RANKS, 64, device=device),
        _room(rows * RANKS, 32, device),
        torch.empty(rows, RANKS, 96, device=device),
        _room(rows, 64, device),
        torch.empty(rows, 96, device=device),
    )
    window.expert_rows_into(blobs, routes.work, x, buffers, SharedExpert(out[:, outputs:], shared_down))
    _plan(scores, routes, x, buffers.by_rank, device)


def _plan(scores: RowScores, routes: Routes, x: RowsOut, by_rank: torch.Tensor, device: torch.device) -> None:
    """The plan of some layer with a seat for every expert, so that nobody has to answer."""

    def zeros(count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(rows + count, dtype=dtype, device=device)[rows:]  # at any address

    rows = scores.rows.count
    seats, share = zeros(EXPERTS, torch.int64) + 256, zeros(rows * RANKS + 1)
    tables = LayerTables(seats, zeros(EXPERTS, torch.int64), share, zeros(EXPERTS), zeros(3))
    state, planned, is_pinned = PlanState.create(device), PlannedWork.empty(rows, RANKS, device), device.type == "cuda"
    for has_gate in (False, True):
        mailbox = Mailbox.create(rows, RANKS, 96, is_quantized=True, is_pinned=is_pinned, has_gate=has_gate)
        plan_experts(routes.work, x, tables, mailbox, rows, state, planned)
        if rows == 1:
            route_and_plan(scores, routes, x, tables, mailbox, rows, state, planned)
        collect_rows(mailbox, state, planned, by_rank)


def _room(rows: int, columns: int, device: torch.device) -> RowsOut:
    return RowsOut(None, Activations.empty(rows, columns // 32, device, LaunchShape()))
