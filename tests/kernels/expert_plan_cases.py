"""Plans of experts by Triton held against their definition, for the interpreter and for a GPU; whoever answers them.

Knows mailboxes and tables; addresses are numbers that nobody reads. Everything follows from a seed.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch

from strata.kernels.expert_plan.tables import OPEN, RAISED, LayerTables, Mailbox, PlannedWork, PlanState
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.router.reference import list_work

PATIENCE_S = 60.0
LAYERS = (5, 0, 11)


@dataclass(frozen=True)
class PlanCase:
    """Some windows of one layer after another, with the same mailbox and counters, answered by a thread."""

    rows: int
    ranks: int
    experts: int
    hidden: int
    unused: int = 0
    is_quantized: bool = True
    lies_by_row: bool = True  # the quantized rows, or side by side
    in_seats: float = 0.5  # of the experts
    pinned: float = 0.8  # that could be read in place
    share: float = 0.3
    spare_rows: int = 0  # of the mailbox beyond the bucket
    has_gate: bool = False  # at which the stream waits

    def check(self, device: torch.device) -> None:
        """Raise AssertionError unless every plan is the definition's, and every row collected the answer to it."""
        from strata.kernels.expert_plan import collect, plan, reference, wait_at_gate

        found, wanted = self.side(device), self.side(torch.device("cpu"))
        with answering(found.mailbox) as answers:
            for turn, layer in enumerate(LAYERS):
                ids, tables, x = self.routing(turn), self.tables(turn), self.activations(turn)
                list_work(ids, wanted.routed)
                copy_work(found.routed, wanted.routed)
                mine, theirs = moved_tables(tables, device), moved_tables(tables, torch.device("cpu"))
                plan.plan_experts(found.routed, self.rows_for(x, device), mine, found.mailbox, layer, *found.plan)
                reference.plan_experts(wanted.routed, RowsOut(x, None), theirs, wanted.mailbox, layer, *wanted.plan)
                if self.has_gate:
                    wait_at_gate(found.mailbox, found.state)
                collect.collect_rows(found.mailbox, found.state, found.planned, found.by_rank)
                answer(wanted.mailbox, int(wanted.mailbox.door))
                reference.collect_rows(wanted.mailbox, wanted.state, wanted.planned, wanted.by_rank)
                compare_sides(f"{self}, turn {turn}", (found, mine), (wanted, theirs))
        assert answers.count == int(wanted.mailbox.door), f"{self}: rang {answers.count} times"

    def routing(self, turn: int) -> torch.Tensor:
        """ids int32 [rows, ranks], the last rows unused."""
        generator = torch.Generator().manual_seed(100 * turn + self.rows)
        ids = torch.stack([torch.randperm(self.experts, generator=generator)[: self.ranks] for _ in range(self.rows)])
        ids[self.rows - self.unused :] = -1
        return ids.int()

    def tables(self, turn: int) -> LayerTables:
        """In main memory; every seat and place an address of its own."""
        generator = torch.Generator().manual_seed(100 * turn + self.experts)
        chances = torch.rand(2, self.experts, generator=generator)
        addresses = torch.arange(1, 2 * self.experts + 1).reshape(2, -1) * 256 + (7 << 40)
        resident, in_place = torch.where(chances < torch.tensor([[self.in_seats], [self.pinned]]), addresses, 0)
        share = (torch.arange(self.rows * self.ranks + 1) * self.share).int()
        asked, totals = torch.randint(1000, (self.experts,), generator=generator).int(), torch.tensor([3, 2, 1]).int()
        return LayerTables(resident, in_place, share, asked, totals)

    def activations(self, turn: int) -> torch.Tensor:
        """float32 [rows, hidden], a block of zeros among them."""
        x = torch.randn(self.rows, self.hidden, generator=torch.Generator().manual_seed(turn + self.hidden))
        x[0, :32] = 0.0
        return x

    def rows_for(self, x: torch.Tensor, device: torch.device) -> RowsOut:
        """What the kernel reads: plain rows or quantized ones, never both."""
        if not self.is_quantized:
            return RowsOut(x.to(device), None)
        from strata.kernels.packed_rows.activations import quantize_into

        launch = LaunchShape(uses_matrix_units=not self.lies_by_row)
        made = Activations.empty(self.rows, self.hidden // 32, device, launch)
        quantize_into(x.to(device), made)
        return RowsOut(None, made)

    def side(self, device: torch.device) -> "Side":
        """With values in it that must not come through."""
        most_rows = self.rows + self.spare_rows
        sizes = self.rows, most_rows, self.ranks, self.hidden
        made = Side.empty(*sizes, self.is_quantized, device, has_gate=self.has_gate)
        for tensor in (made.planned.work.starts, made.planned.work.places, made.planned.work.rows, made.routed.seats):
            tensor.fill_(77)
        return made


@dataclass(frozen=True)
class Side:
    """All that a plan reads and writes on one device, but for the tables."""

    routed: ExpertWork
    mailbox: Mailbox
    state: PlanState
    planned: PlannedWork
    by_rank: torch.Tensor

    @classmethod
    def empty(
        cls,
        rows: int,
        most_rows: int,
        ranks: int,
        hidden: int,
        is_quantized: bool,
        device: torch.device,
        *,
        has_gate: bool = False,
    ) -> "Side":
        """The mailbox has values in it that must not come through."""
        kind = {"is_quantized": is_quantized, "is_pinned": device.type == "cuda", "has_gate": has_gate}
        mailbox = Mailbox.create(most_rows, ranks, hidden, **kind)
        mailbox.out.fill_(-8.0)
        by_rank = torch.full((rows, ranks, hidden), -1.0, device=device)
        routed, planned = ExpertWork.empty(rows, ranks, device), PlannedWork.empty(rows, ranks, device)
        return cls(routed, mailbox, PlanState.create(device), planned, by_rank)

    @property
    def plan(self) -> tuple[PlanState, PlannedWork]:
        """The last two arguments of `plan_experts`."""
        return self.state, self.planned


def answer(mailbox: Mailbox, number: int) -> None:
    """What stands for the experts' work: rows made of what a request says and of nothing else; then the flag."""
    if int(mailbox.done) < number:
        layer, _, count = mailbox.header.tolist()
        ranks = mailbox.out.shape[1]
        for expert, place in mailbox.entries[:count].tolist():
            mailbox.out[place // ranks, place % ranks] = posted_row(mailbox, place // ranks) + (1000 * layer + expert)
        let_go(mailbox, number, OPEN)


def let_go(mailbox: Mailbox, number: int, gate: int) -> None:
    """Both flags that are waited for, in their order."""
    mailbox.done.fill_(number)
    if mailbox.gate is not None:
        mailbox.gate.fill_(gate)


def posted_row(mailbox: Mailbox, row: int) -> torch.Tensor:
    """A row of activations as the mailbox holds it, float32 [hidden]."""
    if mailbox.x is not None:
        return mailbox.x[row]
    assert mailbox.q is not None and mailbox.d is not None
    return mailbox.q[row].float() * mailbox.d[row].repeat_interleave(32)


@dataclass
class Answers:
    """How often a door has risen, by one each time."""

    count: int = 0
    failure: BaseException | None = None


@contextmanager
def answering(mailbox: Mailbox) -> Iterator[Answers]:
    """A thread that answers until the block ends; it waits between seeing a door and answering, so others must wait."""
    answers, ending = Answers(), threading.Event()

    def serve() -> None:
        try:
            while not ending.is_set():
                door = int(mailbox.door)
                if door > answers.count:
                    assert door == answers.count + 1, f"the door went from {answers.count} to {door}"
                    time.sleep(0.002)
                    answer(mailbox, door)
                    answers.count = door
                time.sleep(0)
        except BaseException as reason:
            answers.failure = reason
        finally:
            let_go(mailbox, RAISED, RAISED)  # nobody waits for a thread that is gone

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield answers
    finally:
        ending.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    if answers.failure is not None:
        raise answers.failure


def compare_sides(what: str, mine: tuple["Side", LayerTables], theirs: tuple["Side", LayerTables]) -> None:
    """Raise AssertionError unless plan, request, counters and collected rows are the same."""
    (found, my_tables), (wanted, their_tables) = mine, theirs
    pairs = [(f"planned {name}", *each) for name, each in _tensors(found.planned.work, wanted.planned.work)]
    pairs += [(name, *each) for name, each in _tensors(my_tables, their_tables)]
    asked = int(wanted.planned.cpu_count)
    pairs += [("cpu_count", found.planned.cpu_count, wanted.planned.cpu_count)]
    pairs += [("cpu_places", found.planned.cpu_places[:asked], wanted.planned.cpu_places[:asked])]
    of_gpu = int(wanted.planned.work.starts[-1])
    pairs += [("addresses", found.planned.addresses[:of_gpu], wanted.planned.addresses[:of_gpu])]
    pairs += [("number", found.state.number, wanted.state.number), ("by_rank", found.by_rank, wanted.by_rank)]
    pairs += [("arrivals", found.state.arrivals, torch.zeros(1, dtype=torch.int32))]
    places = wanted.planned.cpu_places[:asked]
    rows = places // wanted.mailbox.out.shape[1]
    pairs += [(name, *each) for name, each in _requests(found.mailbox, wanted.mailbox, rows)]
    for name, left, right in pairs:
        assert_same(f"{what}: {name}", _bits(left).flatten(), _bits(right).flatten())


def assert_same(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise AssertionError, with the first differences, unless two flat tensors of integers are equal."""
    assert found.shape == wanted.shape, f"{what}: {list(found.shape)} instead of {list(wanted.shape)}"
    at = (found != wanted).nonzero()[:6, 0]
    assert not at.numel(), f"{what}: at {at.tolist()} {found[at].tolist()} instead of {wanted[at].tolist()}"


def _requests(
    found: Mailbox, wanted: Mailbox, rows: torch.Tensor
) -> Iterator[tuple[str, tuple[torch.Tensor, torch.Tensor]]]:
    """The parts of two mailboxes that a request is made of, and the rows of activations that it asks for."""
    yield "door", (found.door, wanted.door)
    if found.gate is not None and wanted.gate is not None:
        yield "gate", (found.gate, wanted.gate)
    yield "header", (found.header, wanted.header)
    count = int(wanted.header[2])
    yield "entries", (found.entries[:count], wanted.entries[:count])
    for name in ("x", "q", "d"):
        mine, theirs = getattr(found, name), getattr(wanted, name)
        if theirs is not None:
            yield name, (mine[rows.long()], theirs[rows.long()])


def _tensors(found: object, wanted: object) -> Iterator[tuple[str, tuple[torch.Tensor, torch.Tensor]]]:
    for field in fields(found):  # type: ignore[arg-type]
        mine, theirs = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(mine, torch.Tensor):
            yield field.name, (mine, theirs)


def moved_tables(tables: LayerTables, device: torch.device) -> LayerTables:
    """A copy, as views of wider tensors at no round address."""
    made = {}
    for name, (tensor, _) in _tensors(tables, tables):
        wide = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype, device=device)
        wide[1:] = tensor
        made[name] = wide[1:]
    return replace(tables, **made)


def copy_work(to: ExpertWork, source: ExpertWork) -> None:
    """Between devices."""
    for _, (mine, theirs) in _tensors(to, source):
        mine.copy_(theirs)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.cpu().contiguous()
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


SMALL = (
    PlanCase(1, 3, 9, 64),
    PlanCase(1, 6, 12, 96, is_quantized=False, share=0.5, spare_rows=3),
    PlanCase(1, 4, 9, 32, unused=1),
    PlanCase(3, 2, 5, 160, unused=1, share=1.0, pinned=0.5),
    PlanCase(4, 4, 24, 64, in_seats=0.0, share=0.0, lies_by_row=False, spare_rows=4),
    PlanCase(5, 3, 8, 64, in_seats=1.0),
    PlanCase(5, 3, 8, 64, in_seats=0.0, share=1.0, pinned=1.0),
    PlanCase(12, 6, 40, 64, unused=3, lies_by_row=False),
    PlanCase(3, 4, 24, 64, unused=1, has_gate=True),
    PlanCase(2, 3, 9, 96, in_seats=1.0, has_gate=True),
    PlanCase(5, 4, 24, 64, is_quantized=False, in_seats=0.0, share=0.0, has_gate=True),
)
PUBLISHED = tuple(
    PlanCase(rows, 10, 512, 2560, unused, lies_by_row=rows < 8, spare_rows=32 - rows)
    for rows, unused in ((1, 0), (2, 0), (3, 1), (4, 0), (6, 2), (8, 3), (12, 0), (16, 0), (24, 1), (32, 0))
)
LARGE = (
    PlanCase(32, 16, 4096, 96, share=0.4),  # the most places and experts
    PlanCase(2, 8, 128, 7168, is_quantized=False),
    PlanCase(32, 10, 512, 2560, in_seats=0.5, share=0.0, has_gate=True),
    PlanCase(32, 10, 512, 2560, is_quantized=False, in_seats=0.0, share=0.0),
)
