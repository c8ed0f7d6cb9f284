"""Where a layer's experts are computed, asked of the CPU and collected again: checks, and the choice of road.

Knows where blobs lie and the mailbox; knows no expert's arithmetic, no thread and no policy.
"""

import torch

from strata.kernels.checks import check_rows_out, check_tensor
from strata.kernels.expert_plan.gate import wait_at_gate as wait_at_gate
from strata.kernels.expert_plan.tables import (
    HEADER_FIELDS,
    LayerTables,
    Mailbox,
    PlannedWork,
    PlanState,
    RowScores,
)
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.kernels.router import Routes, check_routing
from strata.quant.layout import BLOCK_COLUMNS

MOST_PLACES = 512  # of a window: 32 rows of 16 ranks


def plan_experts(
    routed: ExpertWork,
    x: RowsOut,
    tables: LayerTables,
    mailbox: Mailbox,
    layer: int,
    state: PlanState,
    planned: PlannedWork,
) -> None:
    """Sort the places of `routed` into those of the GPU and those of the CPU, and ask the CPU for its own. One launch.

    routed: as `route_rows` lists it: `seats[p]` is the expert of every place p in use. x: the rows that gate and up
    read, [rows, hidden]; a mailbox with q takes the quantized ones (the torch road quantizes plain ones), else the
    plain. layer: the number by which whoever answers knows the layer. An expert with a seat is read there. Of n
    distinct experts without one, in the order of `routed`, the GPU reads the last `share[n]` in place, those that can
    be; the rest is the CPU's. If that is any, the request is written and the door rises to a new `state.number`; if
    not, nobody is asked. A gate is open behind it unless somebody is. Raises ValueError for shapes, types or rows that
    do not fit one another.
    """
    is_reference = takes_reference(planned.addresses)
    rows = _check_places(mailbox, planned)
    _check_plan(routed, tables, layer, planned)
    _check_activations(x, mailbox, rows, is_reference)
    if is_reference:
        from strata.kernels.expert_plan.reference import plan_experts as by_definition

        by_definition(routed, x, tables, mailbox, layer, state, planned)
        return
    from strata.kernels.expert_plan.plan import plan_experts as by_kernel

    by_kernel(routed, x, tables, mailbox, layer, state, planned)


def is_one_launch(rows: int, mailbox: Mailbox) -> bool:
    """Whether windows of so many rows are routed and planned by `route_and_plan`."""
    return rows == 1 and mailbox.gate is None


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
    """`route_rows` and `plan_experts` of a window of one row, over a mailbox without a gate. One launch.

    A row of activations is posted only if the CPU is asked. Raises ValueError as those do, and for other windows.
    """
    rows, is_reference = _check_places(mailbox, planned), takes_reference(planned.addresses)
    if not is_one_launch(rows, mailbox):
        raise ValueError(f"{rows} rows, or a mailbox with a gate: route_rows, then plan_experts, in two launches")
    check_routing(scores.logits, scores.rows, routes, scores.shared)
    if scores.shared is not None:
        check_tensor("scores.shared.gate", scores.shared.gate, (mailbox.out.shape[2],))
    check_tensor("tables.asked", tables.asked, (scores.logits.shape[1],), torch.int32)
    _check_plan(routes.work, tables, layer, planned)
    _check_activations(x, mailbox, rows, is_reference)
    if is_reference:
        from strata.kernels.expert_plan.reference import route_and_plan as by_definition

        by_definition(scores, routes, x, tables, mailbox, layer, state, planned)
        return
    from strata.kernels.expert_plan.one_row import route_and_plan as by_kernel

    by_kernel(scores, routes, x, tables, mailbox, layer, state, planned)


def collect_rows(mailbox: Mailbox, state: PlanState, planned: PlannedWork, by_rank: torch.Tensor) -> None:
    """Wait for the CPU's rows, where there are any, and copy them to by_rank float32 [rows, ranks, hidden]. One launch.

    Waits until `done` reaches `state.number`, as it has where `wait_at_gate` stands before this; a `done` that was
    raised by a stop ends every wait, and what is in the mailbox is then copied. Other places of by_rank keep what they
    had. Raises ValueError for other shapes or types.
    """
    rows = _check_places(mailbox, planned)
    check_tensor("by_rank", by_rank, (rows, *mailbox.out.shape[1:]))
    if takes_reference(by_rank):
        from strata.kernels.expert_plan.reference import collect_rows as by_definition

        by_definition(mailbox, state, planned, by_rank)
        return
    from strata.kernels.expert_plan.collect import collect_rows as by_kernel

    by_kernel(mailbox, state, planned, by_rank)


def _check_places(mailbox: Mailbox, planned: PlannedWork) -> int:
    """How many rows the plan has room for, which the mailbox must hold."""
    most_rows, ranks, hidden = mailbox.out.shape
    places = planned.addresses.numel()
    rows = places // planned.work.ranks
    if planned.work.ranks != ranks or rows * ranks != places or not 1 <= rows <= most_rows or places > MOST_PLACES:
        raise ValueError(
            f"a plan of {places} places of {planned.work.ranks} ranks does not fit a mailbox of {most_rows} rows of "
            f"{ranks} ranks; {MOST_PLACES} places are the most"
        )
    check_tensor("mailbox.out", mailbox.out, (most_rows, ranks, hidden))
    check_tensor("mailbox.entries", mailbox.entries, (most_rows * ranks, 2), torch.int32)
    check_tensor("mailbox.gate", mailbox.gate, (1,), torch.int32)
    check_tensor("mailbox.header", mailbox.header, (HEADER_FIELDS,), torch.int32)
    check_tensor("planned.cpu_places", planned.cpu_places, (places,), torch.int32)
    return rows


def _check_plan(routed: ExpertWork, tables: LayerTables, layer: int, planned: PlannedWork) -> None:
    places, experts = planned.addresses.numel(), tables.resident.numel()
    if layer < 0:
        raise ValueError(f"layer must be a layer's number, at least 0, not {layer}")
    if routed.ranks != planned.work.ranks:
        raise ValueError(f"routed has {routed.ranks} ranks, the plan {planned.work.ranks}")
    for name, work in (("routed", routed), ("planned.work", planned.work)):
        check_tensor(f"{name}.seats", work.seats, (places,), torch.int32)
        check_tensor(f"{name}.starts", work.starts, (places + 1,), torch.int32)
        check_tensor(f"{name}.places", work.places, (places,), torch.int32)
        check_tensor(f"{name}.rows", work.rows, (places,), torch.int32)
    check_tensor("planned.addresses", planned.addresses, (places,), torch.int64)
    check_tensor("tables.resident", tables.resident, (experts,), torch.int64)
    check_tensor("tables.in_place", tables.in_place, (experts,), torch.int64)
    check_tensor("tables.asked", tables.asked, (experts,), torch.int32)
    check_tensor("tables.totals", tables.totals, (3,), torch.int32)
    check_tensor("tables.share", tables.share, (tables.share.numel(),), torch.int32)
    most = min(places, experts)
    if tables.share.numel() <= most:
        raise ValueError(f"tables.share has {tables.share.numel()} entries; {most} misses at most need {most + 1}")


def _check_activations(x: RowsOut, mailbox: Mailbox, rows: int, is_reference: bool) -> None:
    most_rows, _, hidden = mailbox.out.shape
    check_rows_out("x", x, rows, hidden)
    if mailbox.x is not None:
        check_tensor("mailbox.x", mailbox.x, (most_rows, hidden))
        if x.plain is None:
            raise ValueError("a mailbox with x takes plain rows: give x.plain, or a mailbox with q and d")
        return
    if mailbox.q is None or mailbox.d is None:
        raise ValueError("a mailbox has either x, or q and d: this one has neither")
    check_tensor("mailbox.q", mailbox.q, (most_rows, hidden), torch.int8)
    check_tensor("mailbox.d", mailbox.d, (most_rows, hidden // BLOCK_COLUMNS))
    if x.quantized is None and not is_reference:
        raise ValueError("a mailbox with q and d takes quantized rows: give x.quantized, or a mailbox with x")
