"""Triton's plan and collecting in its interpreter do what the definition says, and wait for whoever answers."""

import threading
from dataclasses import replace

import pytest
import torch

from strata.kernels.expert_plan.tables import OPEN, RAISED
from strata.kernels.router.reference import list_work
from tests.kernels.expert_plan_cases import LARGE, PATIENCE_S, PUBLISHED, SMALL, PlanCase, Side, let_go
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.route_and_plan_cases import ONE_ROW, RouteAndPlanCase

pytestmark = needs_interpreter

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", [*SMALL, PUBLISHED[0], PUBLISHED[3], LARGE[0]], ids=str)
def test_plans_and_answers_are_those_of_the_definition(case: PlanCase) -> None:
    case.check(CPU)


@pytest.mark.parametrize("case", ONE_ROW, ids=str)
def test_routed_and_planned_in_one_launch_is_both_definitions(case: RouteAndPlanCase) -> None:
    case.check(CPU)


def planned_side(case: PlanCase, *, is_stopped: bool = False) -> Side:
    """A layer's plan, asked and not answered."""
    from strata.kernels.expert_plan import plan

    sizes = case.rows, case.rows, case.ranks, case.hidden
    made = Side.empty(*sizes, case.is_quantized, CPU, has_gate=case.has_gate)
    list_work(case.routing(0), made.routed)
    if is_stopped:
        let_go(made.mailbox, RAISED, RAISED)
    rows = case.rows_for(case.activations(0), CPU)
    plan.plan_experts(made.routed, rows, case.tables(0), made.mailbox, 0, *made.plan)
    return made


@pytest.mark.parametrize("holds_next", [False, True])
def test_collecting_waits_until_the_number_is_reached(holds_next: bool) -> None:
    from strata.kernels.expert_plan import collect

    made = planned_side(PlanCase(2, 3, 9, 64, in_seats=0.0, share=0.0))
    mailbox = replace(made.mailbox, holds_next=holds_next)
    collecting = threading.Thread(target=collect.collect_rows, args=(mailbox, made.state, made.planned, made.by_rank))
    collecting.start()
    collecting.join(0.3)
    assert collecting.is_alive() and bool((made.by_rank == -1.0).all())
    made.mailbox.out.fill_(4.0)
    made.mailbox.done.fill_(1)
    collecting.join(PATIENCE_S)
    assert not collecting.is_alive() and bool((made.by_rank == 4.0).all())


def test_a_raised_flag_ends_every_wait() -> None:
    from strata.kernels.expert_plan import collect

    made = planned_side(PlanCase(2, 3, 9, 64, in_seats=0.0, share=0.0))
    made.state.number.fill_(RAISED - 1)
    made.mailbox.done.fill_(RAISED)
    collect.collect_rows(made.mailbox, made.state, made.planned, made.by_rank)
    assert bool((made.by_rank == made.mailbox.out).all())


def test_without_places_on_the_cpu_the_mailbox_is_left_alone() -> None:
    from strata.kernels.expert_plan import collect

    made = planned_side(PlanCase(2, 3, 9, 64, in_seats=1.0))
    assert made.mailbox.q is not None and made.mailbox.d is not None
    for tensor in (made.mailbox.door, made.mailbox.header, made.mailbox.entries, made.mailbox.q, made.mailbox.d):
        assert not bool(tensor.any())
    assert not bool(made.state.number) and not bool(made.state.arrivals)
    collect.collect_rows(made.mailbox, made.state, made.planned, made.by_rank)  # does not wait
    assert bool((made.by_rank == -1.0).all())


@pytest.mark.parametrize(
    ("in_seats", "is_stopped", "gate"), [(0.0, False, 0), (1.0, False, OPEN), (0.0, True, OPEN), (1.0, True, OPEN)]
)
def test_a_plan_leaves_the_gate_down_only_where_somebody_will_open_it(
    in_seats: float, is_stopped: bool, gate: int
) -> None:
    made = planned_side(PlanCase(2, 3, 9, 64, in_seats=in_seats, share=0.0, has_gate=True), is_stopped=is_stopped)
    assert made.mailbox.gate is not None and made.mailbox.gate.item() == gate
    assert made.mailbox.door.item() == int(in_seats == 0.0) and not bool(made.state.arrivals)
