"""Routing and planning a window of one row on a GPU in one launch: the program that routes it plans at once, and rings.

Knows what router and plan know; the list of work stays in registers between them. Beside it one program for the shared
expert's gate. Floor: that of the plan, behind the ten best of the experts' logits.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.dependent import allow_dependents, dependent_options, wait_for_predecessor
from strata.kernels.expert_plan.plan import (
    LEAST_PLACES,
    ask_for_tables,
    load_row,
    plan_places,
    post_row,
    ring,
    sizes_of_row,
    source_and_targets,
)
from strata.kernels.expert_plan.tables import LayerTables, Mailbox, PlannedWork, PlanState, RowScores
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.router import Routes
from strata.kernels.router.triton import (
    COLUMNS,
    REGISTERS,
    choose,
    list_one_row,
    shared_arguments,
    store_choice,
    store_shared_weight,
)


@triton.jit(
    do_not_specialize=["layer", "row_step", "block_step"],
    do_not_specialize_on_alignment=[
        "logits", "slots", "ids", "weights", "seats", "starts", "places", "place_rows", "x", "gate", "shared_weights",
        "resident", "in_place", "share", "asked", "totals", "values", "records", "door", "header", "entries",
        "row_words", "row_scales", "number", "times",
        "new_starts", "new_places", "new_rows", "addresses", "cpu_places", "cpu_count",
    ],
)  # fmt: skip
def route_and_plan_kernel(
    logits, slots, ids, weights, seats, starts, places, place_rows, x, gate, shared_weights,
    layer, resident, in_place, share, asked, totals, values, records, row_step, block_step,
    door, header, entries, row_words, row_scales, number, times,
    new_starts, new_places, new_rows, addresses, cpu_places, cpu_count,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, RANKS: tl.constexpr, PLACES: tl.constexpr, NORMALIZE: tl.constexpr,
    HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, IS_QUANTIZED: tl.constexpr, WORDS: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Grid (2 with a shared gate, else 1). PLACES: RANKS, filled up. Other constants as in router and plan."""
    if tl.program_id(0) == 0:
        allow_dependents()
        ask_for_tables(resident, in_place, share, EXPERTS, RANKS)
        wait_for_predecessor()
        rung, time, is_used = tl.load(number), tl.load(times), tl.load(slots) >= 0
        row = tl.program_id(0).to(tl.int64)  # the only one
        bits, d = load_row(values, records, row_step, block_step, row, HIDDEN, IS_QUANTIZED, WORDS, SCALES)
        chosen, weight, total = choose(logits, EXPERTS, BLOCK, RANKS, PLACES)
        store_choice(row, is_used, chosen, weight, total, ids, weights, RANKS, NORMALIZE)
        position = list_one_row(is_used, chosen, seats, starts, places, place_rows, RANKS)
        place = tl.arange(0, PLACES)
        goes_here = (position[None, :] == place[:, None]) & (place < RANKS)[None, :]
        expert = tl.sum(tl.where(goes_here, chosen[None, :], 0), axis=1)
        id = tl.sum(tl.where(goes_here, place[None, :], 0), axis=1)
        used = tl.where(is_used, RANKS, 0)
        of_cpu = plan_places(
            expert, place, id, place * 0, used, RANKS, 1, layer, EXPERTS, resident, in_place, share, asked, totals,
            header, entries, new_starts, new_places, new_rows, addresses, cpu_places, cpu_count, PLACES,
        )  # fmt: skip
        asks = (of_cpu > 0).to(tl.int32)
        post_row(bits, d, row_words, row_scales, row, asks, HIDDEN, IS_QUANTIZED)
        tl.debug_barrier()  # all threads' stores lie before the one thread's release
        if of_cpu > 0:
            ring(door, number, times, rung, time)
    else:
        store_shared_weight(tl.program_id(0) - 1, x, gate, shared_weights, HIDDEN, COLUMNS)


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
    """See `strata.kernels.expert_plan.route_and_plan`."""
    experts, ranks = scores.logits.shape[1], routes.ids.shape[1]
    source, targets = source_and_targets(x, mailbox)
    routed, work, has_shared = routes.work, planned.work, scores.shared is not None
    route_and_plan_kernel[(1 + has_shared,)](
        scores.logits, scores.rows.slots, routes.ids, routes.weights,
        routed.seats, routed.starts, routed.places, routed.rows, *shared_arguments(scores.shared, routes),
        layer, tables.resident, tables.in_place, tables.share, tables.asked, tables.totals, *source.arguments,
        mailbox.door, mailbox.header, mailbox.entries, *targets, state.number, state.times,
        work.starts, work.places, work.rows, planned.addresses, planned.cpu_places, planned.cpu_count,
        EXPERTS=experts, BLOCK=triton.next_power_of_2(experts),
        RANKS=ranks, PLACES=max(LEAST_PLACES, triton.next_power_of_2(ranks)), NORMALIZE=scores.normalize,
        COLUMNS=COLUMNS, **sizes_of_row(mailbox),
        num_warps=1, maxnreg=REGISTERS, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
