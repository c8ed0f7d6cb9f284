"""The plan is what its sentences say, in plain Python; collecting waits for the CPU's rows and for nothing else."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.experts.doorbell import DoorbellService, LayerExperts
from strata.experts.pool import ExpertPool, group_by_expert
from strata.kernels.expert_plan import collect_rows, plan_experts, route_and_plan, wait_at_gate
from strata.kernels.expert_plan.tables import OPEN, RAISED, LayerTables, Mailbox, PlannedWork, PlanState, RowScores
from strata.kernels.expert_rows.reference import quantize_rows
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.router import Routes
from strata.kernels.router.reference import list_work
from strata.native import library
from strata.native.pool import Pool
from tests.experts.test_pool import BY_NAME, aligned_blobs, blob_layout
from tests.kernels.expert_plan_cases import (
    PATIENCE_S,
    SMALL,
    PlanCase,
    Side,
    answering,
    let_go,
    posted_row,
)
from tests.kernels.random_matrices import random_choices, random_experts, random_rows
from tests.kernels.window_cases import window_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Layer:
    """A routing and where the experts are."""

    ids: list[list[int] | None]  # of a row; None: unused
    resident: list[int]
    in_place: list[int]
    share: list[int]

    @property
    def ranks(self) -> int:
        return next((len(row) for row in self.ids if row is not None), 1)

    def places(self) -> dict[int, list[int]]:
        """expert -> its places, rising; experts rising."""
        found: dict[int, list[int]] = {}
        for row, chosen in enumerate(self.ids):
            for rank, expert in enumerate(chosen or []):
                found.setdefault(expert, []).append(row * self.ranks + rank)
        return dict(sorted(found.items()))


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    ranks = draw(st.integers(1, 4))
    experts = draw(st.integers(ranks, 9))
    row = st.permutations(range(experts)).map(lambda order: list(order[:ranks]))
    ids = draw(st.lists(st.one_of(row, st.none()), min_size=1, max_size=5))
    where = st.lists(st.booleans(), min_size=experts, max_size=experts)
    resident = [256 * (1 + expert) * is_there for expert, is_there in enumerate(draw(where))]
    in_place = [256 * (100 + expert) * is_there for expert, is_there in enumerate(draw(where))]
    share = [draw(st.integers(0, misses)) for misses in range(len(ids) * ranks + 1)]
    return Layer(ids, resident, in_place, share)


def tables_of(layer: Layer) -> LayerTables:
    asked, totals = torch.zeros(len(layer.resident), dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    return LayerTables(
        torch.tensor(layer.resident), torch.tensor(layer.in_place), torch.tensor(layer.share).int(), asked, totals
    )


@settings(max_examples=200, deadline=None)
@given(layers())
def test_a_plan_is_what_its_sentences_say(layer: Layer) -> None:
    rows, places = len(layer.ids), layer.places()
    ids = torch.tensor([chosen or [-1] * layer.ranks for chosen in layer.ids], dtype=torch.int32)
    made = Side.empty(rows, rows, layer.ranks, 32, True, CPU)
    tables, work = tables_of(layer), made.planned.work
    list_work(ids, made.routed)
    plan_experts(made.routed, RowsOut(torch.ones(rows, 32), None), tables, made.mailbox, 6, *made.plan)

    misses = [expert for expert in places if not layer.resident[expert]]
    first_shared = len(misses) - layer.share[len(misses)]
    in_place = [expert for expert in misses[first_shared:] if layer.in_place[expert]]
    in_seats = [expert for expert in places if layer.resident[expert]]
    on_cpu = [expert for expert in misses if expert not in in_place]
    wanted = [(layer.in_place[expert], places[expert]) for expert in in_place]
    wanted += [(layer.resident[expert], places[expert]) for expert in in_seats]
    starts, listed = work.starts.tolist(), work.places.tolist()
    assert [
        (made.planned.addresses[entry].item(), listed[start:end])
        for entry, (start, end) in enumerate(pairwise(starts))
        if start < end
    ] == wanted
    asked = [(expert, place) for expert in on_cpu for place in places[expert]]
    count = int(made.planned.cpu_count)
    assert [tuple(entry) for entry in made.mailbox.entries[:count].tolist()] == asked
    assert made.planned.cpu_places[:count].tolist() == [place for _, place in asked]
    assert sorted(listed) == list(range(rows * layer.ranks)), "every place is somewhere"
    assert work.rows.tolist() == [place // layer.ranks for place in listed]
    assert work.seats.tolist() == list(range(rows * layer.ranks))
    assert tables.totals.tolist() == [len(in_seats), len(in_place), len(on_cpu)]
    assert tables.asked.tolist() == [int(expert in places) for expert in range(len(layer.resident))]
    assert made.mailbox.header.tolist() == ([6, rows, len(asked)] if asked else [0, 0, 0])
    assert made.mailbox.door.item() == made.state.number.item() == int(bool(asked))


def asked_side(case: PlanCase) -> tuple[Side, torch.Tensor]:
    """A layer whose plan was made, and its activations."""
    sizes, x = (case.rows, case.rows + 2, case.ranks, case.hidden), case.activations(0)
    made = Side.empty(*sizes, case.is_quantized, CPU, has_gate=case.has_gate)
    list_work(case.routing(0), made.routed)
    plan_experts(made.routed, RowsOut(x, None), case.tables(0), made.mailbox, 3, *made.plan)
    return made, x


ALL_ON_CPU = PlanCase(2, 3, 9, 64, in_seats=0.0, share=0.0)


def test_the_mailbox_gets_rows_quantized_as_defined_or_as_they_are() -> None:
    made, x = asked_side(ALL_ON_CPU)
    assert made.mailbox.q is not None and made.mailbox.d is not None
    wanted = quantize_rows(x)
    assert torch.equal(made.mailbox.q[:2].float(), wanted.q.reshape(2, -1))
    assert torch.equal(made.mailbox.d[:2].view(torch.int32), wanted.d.view(torch.int32))
    made, x = asked_side(replace(ALL_ON_CPU, is_quantized=False))
    assert made.mailbox.x is not None and torch.equal(made.mailbox.x[:2], x)
    assert torch.equal(posted_row(made.mailbox, 1), x[1])


def collecting(made: Side) -> threading.Thread:
    thread = threading.Thread(target=collect_rows, args=(made.mailbox, made.state, made.planned, made.by_rank))
    thread.start()
    return thread


def test_collecting_waits_until_the_number_is_reached() -> None:
    made, _ = asked_side(ALL_ON_CPU)
    thread = collecting(made)
    thread.join(0.2)
    assert thread.is_alive() and bool((made.by_rank == -1.0).all())
    made.mailbox.out.fill_(4.0)
    made.mailbox.done.fill_(1)
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and bool((made.by_rank == 4.0).all())
    between, waited = made.state.times.tolist()
    assert between > 0 and waited > 0.15e9


def test_a_raised_flag_ends_a_wait() -> None:
    made, _ = asked_side(ALL_ON_CPU)
    made.state.number.fill_(RAISED - 1)
    thread = collecting(made)
    made.mailbox.done.fill_(RAISED)
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and torch.equal(made.by_rank, made.mailbox.out[:2])


def waiting(made: Side) -> threading.Thread:
    thread = threading.Thread(target=wait_at_gate, args=(made.mailbox, made.state))
    thread.start()
    return thread


def test_the_gate_is_down_from_a_request_to_its_answer() -> None:
    made, _ = asked_side(replace(ALL_ON_CPU, has_gate=True))
    thread = waiting(made)
    made.mailbox.done.fill_(1)
    thread.join(0.2)
    assert thread.is_alive(), "the gate is waited for, and nothing else"
    let_go(made.mailbox, 1, OPEN)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_gate_is_open_where_nobody_is_asked() -> None:
    case = replace(ALL_ON_CPU, has_gate=True, in_seats=1.0)
    made, x = asked_side(case)
    wait_at_gate(made.mailbox, made.state)
    assert made.mailbox.gate is not None
    made.mailbox.gate.zero_()  # as a plan before it left it
    plan_experts(made.routed, RowsOut(x, None), case.tables(0), made.mailbox, 3, *made.plan)
    wait_at_gate(made.mailbox, made.state)


def test_a_request_behind_a_stop_waits_for_nobody() -> None:
    case = replace(ALL_ON_CPU, has_gate=True)
    made, x = asked_side(case)
    let_go(made.mailbox, RAISED, RAISED)
    for _ in range(2):
        plan_experts(made.routed, RowsOut(x, None), case.tables(0), made.mailbox, 3, *made.plan)
        wait_at_gate(made.mailbox, made.state)
        collect_rows(made.mailbox, made.state, made.planned, made.by_rank)
    assert made.mailbox.door.item() == 3


def test_a_mailbox_without_a_gate_is_not_waited_at() -> None:
    made, _ = asked_side(ALL_ON_CPU)
    with pytest.raises(ValueError, match="no gate to wait at"):
        wait_at_gate(made.mailbox, made.state)


def test_without_places_on_the_cpu_nobody_is_asked_and_nobody_waits() -> None:
    made, _ = asked_side(replace(ALL_ON_CPU, in_seats=1.0))
    assert made.mailbox.q is not None
    for tensor in (made.mailbox.door, made.mailbox.header, made.mailbox.entries, made.mailbox.q):
        assert not bool(tensor.any())
    collect_rows(made.mailbox, made.state, made.planned, made.by_rank)
    assert bool((made.by_rank == -1.0).all()) and not bool(made.state.times.any())


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_only_the_places_of_the_cpu_are_collected(case: PlanCase) -> None:
    sizes = case.rows, case.rows, case.ranks, case.hidden
    made = Side.empty(*sizes, case.is_quantized, CPU, has_gate=case.has_gate)
    with answering(made.mailbox) as answers:
        for turn in range(3):
            list_work(case.routing(turn), made.routed)
            made.by_rank.fill_(-1.0)
            x, tables = case.activations(turn), case.tables(turn)
            plan_experts(made.routed, RowsOut(x, None), tables, made.mailbox, turn, *made.plan)
            if case.has_gate:
                wait_at_gate(made.mailbox, made.state)
            collect_rows(made.mailbox, made.state, made.planned, made.by_rank)
            count = int(made.planned.cpu_count)
            collected = (made.by_rank != -1.0).any(dim=2).flatten().nonzero()[:, 0].tolist()
            assert collected == sorted(made.planned.cpu_places[:count].tolist())
            for expert, place in made.mailbox.entries[:count].tolist():
                row = posted_row(made.mailbox, place // case.ranks) + (1000 * turn + expert)
                assert torch.equal(made.by_rank.flatten(0, 1)[place], row)
    assert answers.count == int(made.state.number)


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
@pytest.mark.parametrize("is_quantized", [False, True])
def test_the_service_answers_with_the_rows_of_the_experts(is_quantized: bool) -> None:
    rows, ranks, count, hidden = 3, 2, 6, 256
    layout = blob_layout(BY_NAME["q4_k"], BY_NAME["q6_k"], hidden, 256)
    blobs = aligned_blobs(random_experts(1, layout, count))
    choices, x = random_choices(5, rows, ranks, count), random_rows(5, rows, hidden) * 1e-2
    made = Side.empty(rows, rows + 1, ranks, hidden, is_quantized, CPU)
    tables = PlanCase(rows, ranks, count, hidden, in_seats=0.4, share=0.0).tables(0)
    list_work(choices.int(), made.routed)
    experts = LayerExperts(layout, [blobs[number].data_ptr() for number in range(count)])
    with Pool(2) as pool, DoorbellService(pool, [experts], [made.mailbox]) as service:
        wanted = torch.zeros(rows, ranks, hidden)
        ExpertPool(pool, layout).compute(group_by_expert(choices, blobs), x, wanted)
        service.begin(0)
        plan_experts(made.routed, RowsOut(x, None), tables, made.mailbox, 0, *made.plan)
        collect_rows(made.mailbox, made.state, made.planned, made.by_rank)
        service.end(0)
    asked = made.planned.cpu_places[: int(made.planned.cpu_count)].long()
    assert 0 < asked.numel() < rows * ranks and made.mailbox.status.item() == 0
    found = made.by_rank.flatten(0, 1)[asked].view(torch.int32)
    assert torch.equal(found, wanted.flatten(0, 1)[asked].view(torch.int32))


def refused(change: Callable[[dict[str, object]], object], match: str) -> None:
    """`change` spoils the arguments of a plan that is right."""
    case = PlanCase(2, 3, 9, 64)
    made = Side.empty(2, 4, 3, 64, True, CPU)
    given_: dict[str, object] = {
        "routed": made.routed, "x": RowsOut(case.activations(0), None), "tables": case.tables(0),
        "mailbox": made.mailbox, "layer": 0, "state": made.state, "planned": made.planned,
    }  # fmt: skip
    list_work(case.routing(0), made.routed)
    change(given_)
    with pytest.raises(ValueError, match=match):
        plan_experts(**given_)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"layer": -1}, "layer must be a layer's number, at least 0, not -1"),
        ({"mailbox": Mailbox.create(1, 3, 64)}, "6 places of 3 ranks does not fit a mailbox of 1 rows of 3 ranks"),
        ({"mailbox": Mailbox.create(4, 2, 64)}, "a mailbox of 4 rows of 2 ranks"),
        ({"mailbox": Mailbox.create(4, 3, 32)}, r"x.plain must be contiguous torch.float32 \[2, 32\]"),
        ({"mailbox": replace(Mailbox.create(4, 3, 64), x=None)}, "either x, or q and d"),
        ({"mailbox": replace(Mailbox.create(4, 3, 64), gate=torch.zeros(2).int())}, "mailbox.gate must be"),
        ({"planned": PlannedWork.empty(3, 3, CPU)}, r"routed.seats must be contiguous torch.int32 \[9\]"),
        ({"planned": PlannedWork.empty(52, 10, CPU), "mailbox": Mailbox.create(52, 10, 64)}, "512 places are the most"),
        ({"routed": ExpertWork.empty(3, 2, CPU)}, "routed has 2 ranks, the plan 3"),
        ({"tables": replace(PlanCase(2, 3, 9, 64).tables(0), share=torch.zeros(6).int())}, "has 6 entries; 6 misses"),
        ({"tables": replace(PlanCase(2, 3, 9, 64).tables(0), in_place=torch.zeros(8).long())}, "tables.in_place"),
        ({"x": RowsOut(None, None)}, "x has neither plain nor quantized rows"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], match: str) -> None:
    refused(lambda arguments: arguments.update(change), match)


def test_rows_in_another_form_than_the_mailbox_takes_are_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.kernels.expert_plan.takes_reference", lambda tensor: False)
    refused(lambda arguments: None, "a mailbox with q and d takes quantized rows")


@pytest.mark.parametrize(("rows", "has_gate"), [(2, False), (1, True)])
def test_only_one_row_without_a_gate_is_routed_and_planned_at_once(rows: int, has_gate: bool) -> None:
    case = PlanCase(rows, 3, 9, 64, has_gate=has_gate)
    made = Side.empty(rows, rows, 3, 64, True, CPU, has_gate=has_gate)
    scores = RowScores(torch.zeros(rows, 9), window_of([(0, rows)], rows), True, None)
    routes = Routes.empty(rows, 3, CPU, has_shared_gate=False)
    x = RowsOut(case.activations(0), None)
    with pytest.raises(ValueError, match=f"{rows} rows, or a mailbox with a gate"):
        route_and_plan(scores, routes, x, case.tables(0), made.mailbox, 0, *made.plan)


def test_a_row_is_planned_as_it_is_routed() -> None:
    case = PlanCase(1, 3, 9, 64, in_seats=0.0, share=0.0)
    made = Side.empty(1, 1, 3, 64, True, CPU)
    logits = torch.tensor([[0, 5, 0, 7, 0, 0, 6, 0, 0.0]])
    routes = Routes.empty(1, 3, CPU, has_shared_gate=False)
    scores = RowScores(logits, window_of([(0, 1)], 1), True, None)
    x = RowsOut(case.activations(0), None)
    route_and_plan(scores, routes, x, case.tables(0), made.mailbox, 5, *made.plan)
    assert routes.ids.tolist() == [[3, 6, 1]]
    assert made.mailbox.header.tolist() == [5, 1, 3]
    assert made.mailbox.entries.tolist() == [[1, 2], [3, 0], [6, 1]]
    with pytest.raises(ValueError, match=r"tables.asked must be contiguous torch.int32 \[8\]"):
        fewer = replace(scores, logits=logits[:, :8].contiguous())
        route_and_plan(fewer, routes, x, case.tables(0), made.mailbox, 5, *made.plan)


def test_a_result_of_another_size_is_refused() -> None:
    made = Side.empty(2, 4, 3, 64, True, CPU)
    with pytest.raises(ValueError, match=r"by_rank must be contiguous torch.float32 \[2, 3, 64\]"):
        collect_rows(made.mailbox, PlanState.create(CPU), made.planned, torch.zeros(4, 3, 64))
