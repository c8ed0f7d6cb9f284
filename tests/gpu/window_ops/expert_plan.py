"""Plans and collected rows on a GPU: integers and bits of the definition, a thread and the C++ service answering.

Knows no model. Speeds are of LAUNCHES plans, each with its collecting. The echo is the C++ service, asked for a layer
that it does not know: it answers with an error, at once. Waiting is a kernel's or the stream's (`gate.py`).
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

import strata.native
from strata.bench.device_timing import captured
from strata.errors import EngineError
from strata.experts.doorbell import DoorbellService, LayerExperts
from strata.experts.pool import ExpertPool, group_by_expert
from strata.kernels.expert_plan import collect_rows, plan_experts, route_and_plan, wait_at_gate
from strata.kernels.expert_plan.tables import OPEN, RAISED, Mailbox, RowScores
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.router import Routes, SharedGate, route_rows
from strata.kernels.router.reference import list_work
from strata.native import library
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout
from tests.gpu.native_twin import BUILD
from tests.gpu.weights import KIND
from tests.kernels.expert_plan_cases import LARGE, PUBLISHED, SMALL, PlanCase, Side, copy_work, let_go, moved_tables
from tests.kernels.random_matrices import Experts, random_experts
from tests.kernels.route_and_plan_cases import ONE_ROW
from tests.kernels.window_cases import window_of

LAUNCHES = 16
REPLAYS = 50
BUILD_S = 60.0
STOPS = 40
PATIENCE_S = 20.0
WAITS = {"a kernel waits": False, "the stream waits": True}
RANKS, EXPERTS, HIDDEN = 10, 512, 2560
KNOWN_LAYER, UNKNOWN_LAYER = 0, 1  # to a service of one layer


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Every case of the interpreter, every bucket at published sizes, the largest; what only a device can do, last."""
    for case in (*SMALL, *PUBLISHED, *LARGE):
        yield str(case), partial(case.check, device)
    for one_row in ONE_ROW:
        yield str(one_row), partial(one_row.check, device)
    for how, has_gate in WAITS.items():
        yield f"a raised flag ends a wait, {how}", partial(_check_raised, device, has_gate)
        for rows in (1, 6):
            what = f"{rows} rows, the service answers {REPLAYS} replays, {how}"
            yield what, partial(_check_service, device, rows, has_gate)
        yield f"{STOPS} stops in the middle of replays, {how}", partial(_check_stops, device, has_gate)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Published sizes; bytes are those over PCIe."""
    for how, has_gate in WAITS.items():
        for rows in (1, 8, 32):
            case = PlanCase(rows, RANKS, EXPERTS, HIDDEN, in_seats=1.0, has_gate=has_gate)
            yield f"{LAUNCHES} x plan, collect: {rows} rows, all in seats, {how}", _Layer(case, device).launch, 0
        yield from _asking_speeds(device, how, has_gate)
    yield from _one_row_speeds(device)


def _one_row_speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """One row as windows run it, routed and planned in one launch, beside routing alone."""
    case = PlanCase(1, RANKS, EXPERTS, HIDDEN, in_seats=1.0, share=0.0)
    yield f"{LAUNCHES} x route: 1 row", _OneRow(case, device).launch_routes, 0
    for in_seats in (1.0, 0.7, 0.0):
        layer = _OneRow(replace(case, in_seats=in_seats), device)
        layer.plan()
        places = int(layer.side.planned.cpu_count)
        yield f"{LAUNCHES} x route and plan: 1 row, {places} places", layer.launch_plans, 0
        layer.rest()
        with _serving(layer.side.mailbox, _experts(HIDDEN, 32, 1)):
            yield f"{LAUNCHES} x route and plan, echo, collect: 1 row, {places} places", layer.launch, 0


def _asking_speeds(device: torch.device, how: str, has_gate: bool) -> Iterable[tuple[str, Callable[[], None], int]]:
    for rows, in_seats in ((1, 0.7), (1, 0.0), (8, 0.5), (32, 0.5)):
        case = PlanCase(rows, RANKS, EXPERTS, HIDDEN, in_seats=in_seats, share=0.0, has_gate=has_gate)
        layer = _Layer(case, device)
        layer.plan()
        places = int(layer.side.planned.cpu_count)
        what = f"{rows} rows, {places} places, {how}"
        yield f"{LAUNCHES} x plan: {what}", layer.launch_plans, LAUNCHES * layer.posted_bytes
        layer.rest()
        with _serving(layer.side.mailbox, _experts(HIDDEN, 32, 1)):
            both = LAUNCHES * (layer.posted_bytes + places * HIDDEN * 4)
            yield f"{LAUNCHES} x plan, echo, collect: {what}", layer.launch, both


class _Layer:
    """A case's first routing and tables on a device, as launches."""

    def __init__(self, case: PlanCase, device: torch.device, number: int = UNKNOWN_LAYER) -> None:
        sizes = case.rows, 32, case.ranks, case.hidden
        self.side = Side.empty(*sizes, case.is_quantized, device, has_gate=case.has_gate)
        self.x, self.number = case.activations(0), number
        self.posted_bytes = case.rows * case.hidden * 9 // 8 + case.rows * case.ranks * 8
        self._rows, self._tables = case.rows_for(self.x, device), moved_tables(case.tables(0), device)
        routed = ExpertWork.empty(case.rows, case.ranks, "cpu")
        list_work(case.routing(0), routed)
        copy_work(self.side.routed, routed)

    def plan(self) -> None:
        """One plan, answered by nobody."""
        plan_experts(self.side.routed, self._rows, self._tables, self.side.mailbox, self.number, *self.side.plan)

    def plan_and_collect(self) -> None:
        """One plan and its collecting."""
        self.plan()
        if self.side.mailbox.gate is not None:
            wait_at_gate(self.side.mailbox, self.side.state)
        collect_rows(self.side.mailbox, *self.side.plan, self.side.by_rank)

    def rest(self) -> None:
        """As before the first request; nothing is in flight."""
        torch.cuda.synchronize(self.side.by_rank.device)
        self.side.mailbox.door.zero_()
        self.side.state.number.zero_()
        let_go(self.side.mailbox, 0, OPEN)

    def launch_plans(self) -> None:
        """What is timed."""
        for _ in range(LAUNCHES):
            self.plan()

    def launch(self) -> None:
        """What is timed, with answers."""
        for _ in range(LAUNCHES):
            self.plan_and_collect()


class _OneRow(_Layer):
    """One row, routed and planned in one launch."""

    def __init__(self, case: PlanCase, device: torch.device) -> None:
        super().__init__(case, device)
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(1, case.experts, generator=generator).to(device)
        shared = SharedGate(self.x.to(device), torch.zeros(case.hidden, device=device))
        self._scores = RowScores(logits, window_of([(0, 1)], 1, device=device), True, shared)
        self._routes = Routes.empty(1, case.ranks, device, has_shared_gate=True)

    def plan(self) -> None:
        """See `_Layer.plan`."""
        route_and_plan(
            self._scores, self._routes, self._rows, self._tables, self.side.mailbox, self.number, *self.side.plan
        )

    def launch_routes(self) -> None:
        """What is timed, without a plan."""
        scores = self._scores
        for _ in range(LAUNCHES):
            route_rows(scores.logits, scores.rows, scores.normalize, self._routes, scores.shared)


def _check_raised(device: torch.device, has_gate: bool) -> None:
    layer = _Layer(PlanCase(4, RANKS, EXPERTS, HIDDEN, in_seats=0.0, share=0.0, has_gate=has_gate), device)
    side, ended = layer.side, torch.cuda.Event()
    let_go(side.mailbox, RAISED, RAISED)
    layer.plan_and_collect()  # compiled, loaded; nobody waits for a raised flag
    torch.cuda.synchronize(device)
    side.mailbox.done.zero_()
    side.by_rank.fill_(-1.0)
    try:
        layer.plan_and_collect()
        ended.record()
        time.sleep(0.1)
        assert not ended.query(), "nobody has answered, and the wait has ended"
    finally:
        let_go(side.mailbox, RAISED, RAISED)
    torch.cuda.synchronize(device)
    assert torch.equal(side.by_rank.cpu(), side.mailbox.out[:4]), "what is in the mailbox was not copied"


SERVED = PlanCase(1, 3, 6, 256, in_seats=0.4, share=0.0)


def _check_service(device: torch.device, rows: int, has_gate: bool) -> None:
    """Bits of the C++ library's own call, by every replay of a graph."""
    _open_library()
    case = replace(SERVED, rows=rows, has_gate=has_gate)
    layer, experts = _Layer(case, device, KNOWN_LAYER), _experts(case.hidden, 256, case.experts)
    side, wanted = layer.side, torch.zeros(rows, case.ranks, case.hidden)
    stride = experts.blobs.stride
    blobs = {n: experts.blobs.memory[n * stride :][:stride] for n in range(case.experts)}
    with Pool(2) as pool:
        ExpertPool(pool, experts.blobs.layout).compute(group_by_expert(case.routing(0), blobs), layer.x, wanted)
    with _serving(side.mailbox, experts):
        graph = captured([layer.plan_and_collect])
        places = side.planned.cpu_places[: int(side.planned.cpu_count)].long().cpu()
        assert places.numel(), "nothing is asked of the CPU"
        for replay in range(REPLAYS):
            side.by_rank.fill_(-1.0)
            graph.replay()
            found = side.by_rank.cpu().flatten(0, 1)
            is_same = torch.equal(found[places].view(torch.int32), wanted.flatten(0, 1)[places].view(torch.int32))
            assert is_same, f"replay {replay}: other rows than the library's"
            others = torch.ones(len(found), dtype=torch.bool).index_fill(0, places, False)
            assert bool((found[others] == -1.0).all()), f"replay {replay}: places of the GPU were written"
        assert int(side.mailbox.status) == 0
    between, waited = side.state.times.tolist()
    assert 0 < between < 10e9 and 0 < waited < 10e9, f"times of {between} and {waited} ns"


def _check_stops(device: torch.device, has_gate: bool) -> None:
    """Windows that were launched run to their ends, at whatever moment the service is stopped."""
    layer = _Layer(replace(SERVED, has_gate=has_gate), device, KNOWN_LAYER)
    experts, graph = _experts(SERVED.hidden, 256, SERVED.experts), None
    for stop in range(STOPS):
        layer.rest()
        with _serving(layer.side.mailbox, experts) as service:
            graph = graph or captured([layer.launch])
            ended = torch.cuda.Event()
            for _ in range(REPLAYS):
                graph.replay()
            ended.record()
            time.sleep(stop * 1e-4)
            service.stop()
            limit = time.monotonic() + PATIENCE_S
            while not ended.query() and time.monotonic() < limit:
                time.sleep(1e-3)
            is_over = ended.query()
            let_go(layer.side.mailbox, RAISED, RAISED)  # else nobody could tell
            assert is_over, f"stop {stop}: a window waits for ever"


def _experts(hidden: int, width: int, count: int) -> Experts:
    gate, down = KIND["q4_0"].layout(width, hidden), KIND["q8_0"].layout(hidden, width)
    return random_experts(3, BlobLayout(gate, gate, down), count)


@contextmanager
def _serving(mailbox: Mailbox, experts: Experts) -> Iterator[DoorbellService]:
    """A service of one layer, with a window in flight."""
    _open_library()
    blobs = experts.blobs
    layer = LayerExperts(blobs.layout, [blobs.memory.data_ptr() + seat * blobs.stride for seat in range(blobs.seats)])
    threads = min(8, os.cpu_count() or 1)
    with Pool(threads) as pool, DoorbellService(pool, [layer], [mailbox]) as service:
        service.begin(0)
        try:
            yield service
            torch.cuda.synchronize()
        finally:
            service.end(0)


def _open_library() -> None:
    """The library, which is built in the background where it is not there yet."""
    if not library.is_available():
        strata.native.__path__.append(str(BUILD))
    limit = time.monotonic() + BUILD_S
    while True:
        try:
            library.load()
            return
        except EngineError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.5)
