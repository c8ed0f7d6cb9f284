"""The plan of a layer's experts and the collecting as they are defined, in torch. Knows no expert's bytes.

Waits in Python: whoever answers has the core in the meantime.
"""

import time

import torch

from strata.kernels.checks import plain_rows
from strata.kernels.expert_plan.tables import (
    OPEN,
    RAISED,
    LayerTables,
    Mailbox,
    PlannedWork,
    PlanState,
    RowScores,
)
from strata.kernels.expert_rows.reference import quantize_rows
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.router import Routes
from strata.kernels.router.reference import route_rows

IN_PLACE, IN_SEAT, ON_CPU, UNUSED = range(4)  # in the order of the planned places


def route_and_plan(
    scores: RowScores,
    routes: Routes,
    x: RowsOut,
    tables: LayerTables,
    mailbox: Mailbox,
    layer: int,
    state: PlanState,
    planned: PlannedWork,
) -> None:
    """See `strata.kernels.expert_plan.route_and_plan`; any device, plain rows."""
    route_rows(scores.logits, scores.rows, scores.normalize, routes, scores.shared)
    plan_experts(routes.work, x, tables, mailbox, layer, state, planned)


def plan_experts(
    routed: ExpertWork,
    x: RowsOut,
    tables: LayerTables,
    mailbox: Mailbox,
    layer: int,
    state: PlanState,
    planned: PlannedWork,
) -> None:
    """See `strata.kernels.expert_plan.plan_experts`; any device, plain rows."""
    if mailbox.gate is not None:
        mailbox.gate.zero_()
    position = torch.arange(routed.places.numel(), device=routed.places.device)
    is_used = position < routed.starts[-1]
    experts = torch.where(is_used, routed.seats, 0).long()
    is_first = is_used & (routed.starts[:-1] == position)
    kinds = _kinds(experts, is_used, is_first, tables)
    order = torch.argsort(kinds, stable=True)
    _write_work(routed, tables, experts, kinds, order, planned)
    _count(experts, kinds, is_first, tables)
    asked = order[kinds[order] == ON_CPU]
    planned.cpu_count.fill_(asked.numel())
    planned.cpu_places[: asked.numel()] = routed.places[asked]
    if asked.numel():
        entries = torch.stack((experts[asked].int(), routed.places[asked]), dim=1)
        _ask(mailbox, layer, entries, plain_rows("x", x), state)
    if mailbox.gate is not None and (not asked.numel() or int(mailbox.done) == RAISED):
        mailbox.gate.fill_(OPEN)


def _kinds(experts: torch.Tensor, is_used: torch.Tensor, is_first: torch.Tensor, tables: LayerTables) -> torch.Tensor:
    """Where every place [places] is computed."""
    is_miss = is_used & (tables.resident[experts] == 0)
    misses_so_far = (is_miss & is_first).cumsum(0)
    misses = misses_so_far[-1]
    is_shared = misses_so_far > misses - tables.share[misses]
    is_in_place = is_miss & is_shared & (tables.in_place[experts] != 0)
    kinds = torch.full_like(experts, IN_SEAT)
    kinds[is_miss] = ON_CPU
    kinds[is_in_place] = IN_PLACE
    kinds[~is_used] = UNUSED
    return kinds


def _write_work(
    routed: ExpertWork,
    tables: LayerTables,
    experts: torch.Tensor,
    kinds: torch.Tensor,
    order: torch.Tensor,
    planned: PlannedWork,
) -> None:
    """order[i]: which place of `routed` is planned at i. An expert's places stay together, its starts move along."""
    of_gpu = (kinds <= IN_SEAT).sum().int()
    moved = routed.starts[:-1][order] + (torch.arange(order.numel(), device=order.device) - order)
    is_of_gpu = kinds[order] <= IN_SEAT
    planned.work.starts[:-1] = torch.where(is_of_gpu, moved, of_gpu)
    planned.work.starts[-1] = of_gpu
    planned.work.places.copy_(routed.places[order])
    planned.work.rows.copy_(routed.rows[order])
    addresses = torch.where(kinds == IN_PLACE, tables.in_place[experts], tables.resident[experts])
    planned.addresses.copy_(torch.where(is_of_gpu, addresses[order], 0))


def _count(experts: torch.Tensor, kinds: torch.Tensor, is_first: torch.Tensor, tables: LayerTables) -> None:
    tables.asked[experts[is_first]] += 1  # each of them once
    for index, kind in enumerate((IN_SEAT, IN_PLACE, ON_CPU)):
        tables.totals[index] += (is_first & (kinds == kind)).sum()


def _ask(mailbox: Mailbox, layer: int, entries: torch.Tensor, rows: torch.Tensor, state: PlanState) -> None:
    """The request first, the door last."""
    count = rows.shape[0]
    if mailbox.x is not None:
        mailbox.x[:count] = rows
    else:
        assert mailbox.q is not None and mailbox.d is not None  # checked by the caller
        quantized = quantize_rows(rows)
        mailbox.q[:count] = quantized.q.reshape(count, -1).to(torch.int8)
        mailbox.d[:count] = quantized.d
    mailbox.entries[: entries.shape[0]] = entries
    mailbox.header.copy_(torch.tensor([layer, count, entries.shape[0]], dtype=torch.int32))
    state.number.add_(1)
    state.times[0] -= time.monotonic_ns()  # collecting adds its start
    mailbox.door.copy_(state.number)


def collect_rows(mailbox: Mailbox, state: PlanState, planned: PlannedWork, by_rank: torch.Tensor) -> None:
    """See `strata.kernels.expert_plan.collect_rows`; any device."""
    count = int(planned.cpu_count)
    if not count:
        return
    started, number = time.monotonic_ns(), int(state.number)
    while int(mailbox.done) < number:
        time.sleep(0)
    state.times.add_(torch.tensor([started, time.monotonic_ns() - started], device=state.times.device))
    places = planned.cpu_places[:count].long()
    by_rank.flatten(0, 1)[places] = mailbox.out.flatten(0, 1)[places.to(mailbox.out.device)].to(by_rank.device)
