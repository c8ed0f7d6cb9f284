"""Routing on a GPU in one launch: one program a row, beside it one for the shared expert's gate.

The program of a row that ends last writes the list of work (list_work.py). Knows ids; knows no expert's bytes. Logits
are compared as integers that keep their order, so a choice is exact; additions are in one fixed order, whatever the
number of rows.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import allow_dependents, begin_dependent, dependent_options, wait_for_predecessor
from strata.kernels.division import divide
from strata.kernels.elementary import exp_by_polynomial, sigmoid
from strata.kernels.router import Routes, SharedGate
from strata.kernels.router.list_work import arrive, list_work, mark_choices
from strata.kernels.window_rows import WindowRows

NO_EXPERT = tl.constexpr(0x7FFFFFFF)  # the id of a place of an unused row: behind every expert
TAKEN = tl.constexpr(-0x80000000)  # below the key of every logit
COLUMNS = 512  # of the shared gate at a time
REGISTERS = 255  # most of a thread: what the one warp of a program reads is then asked for at once


@triton.jit
def ordered_key(x):
    """float32 -> int32 in the same order; +0 and -0 have one key, and no key is TAKEN."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.maximum(bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x7FFFFFFF)


@triton.jit
def value_of_key(key):
    """The float32 that a key was made of."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def choose(logits, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, RANKS: tl.constexpr, RANK_BLOCK: tl.constexpr):
    """One row's logits -> ids, shares (softmax) and the sum of the shares in every place: [RANK_BLOCK] each."""
    expert, rank = tl.arange(0, BLOCK), tl.arange(0, RANK_BLOCK)
    logit = tl.load(logits + expert, mask=expert < EXPERTS, other=0.0)
    keys = tl.where(expert < EXPERTS, ordered_key(logit), TAKEN)
    most = value_of_key(tl.max(keys, axis=0))
    total = tl.sum(tl.where(expert < EXPERTS, exp_by_polynomial(logit - most), 0.0), axis=0)
    total = tl.broadcast_to(total, (RANK_BLOCK,))
    ids = tl.full((RANK_BLOCK,), NO_EXPERT, tl.int32)
    shares = tl.zeros((RANK_BLOCK,), tl.float32)
    chosen_total = tl.zeros((RANK_BLOCK,), tl.float32)
    for step in range(RANKS):
        best = tl.max(keys, axis=0)
        chosen = tl.min(tl.where(keys == best, expert, NO_EXPERT), axis=0)
        keys = tl.where(expert == chosen, TAKEN, keys)
        share = divide(exp_by_polynomial(tl.broadcast_to(value_of_key(best) - most, (RANK_BLOCK,))), total)
        chosen_total += share
        ids = tl.where(rank == step, chosen, ids)
        shares = tl.where(rank == step, share, shares)
    return ids, shares, chosen_total


@triton.jit
def store_choice(
    row, is_used, chosen, share, total, ids, weights, RANKS: tl.constexpr, NORMALIZE: tl.constexpr
):  # fmt: skip
    """Ids and weights of a row, from what `choose` gives."""
    rank = tl.arange(0, chosen.shape[0])
    weight = tl.div_rn(share, total) if NORMALIZE else share
    tl.store(ids + row * RANKS + rank, tl.where(is_used, chosen, -1), mask=rank < RANKS)
    tl.store(weights + row * RANKS + rank, tl.where(is_used, weight, 0.0), mask=rank < RANKS)


@triton.jit
def list_one_row(is_used, chosen, seats, starts, places, place_rows, RANKS: tl.constexpr):
    """The list of work of a window of one row: its ids in order. Returns the position of every rank."""
    rank = tl.arange(0, chosen.shape[0])
    exists = rank < RANKS
    lower = tl.sum((chosen[None, :] < chosen[:, None]).to(tl.int32), axis=1)
    position = tl.where(is_used, lower, rank)
    tl.store(seats + position, tl.where(is_used, chosen, 0), mask=exists)
    tl.store(starts + position, tl.where(is_used, position, 0), mask=exists)
    tl.store(places + position, rank, mask=exists)
    tl.store(place_rows + rank, rank * 0, mask=exists)
    tl.store(starts + RANKS, tl.where(is_used, RANKS, 0))
    return position


@triton.jit
def store_shared_weight(row, x, gate, shared_weights, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr):
    """The shared expert's weight of one row."""
    first = tl.arange(0, COLUMNS) == 0
    opened = shared_weight(x + row.to(tl.int64) * HIDDEN, gate, HIDDEN, COLUMNS)
    tl.store(shared_weights + row + tl.zeros((COLUMNS,), tl.int32), opened, mask=first)


@triton.jit
def shared_weight(x, gate, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr):
    """sigmoid(x . gate) in every place of [COLUMNS]; waits for the predecessor once the gate is asked for."""
    allow_dependents()
    column = tl.arange(0, COLUMNS)
    CHUNKS: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS
    gates = ()
    for chunk in tl.static_range(CHUNKS):
        at = chunk * COLUMNS + column
        gates += (tl.load(gate + at, mask=at < HIDDEN, other=0.0),)
    wait_for_predecessor()
    sums = tl.zeros((COLUMNS,), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        at = chunk * COLUMNS + column
        sums = tl.fma(tl.load(x + at, mask=at < HIDDEN, other=0.0), gates[chunk], sums)
    return sigmoid(tl.broadcast_to(tl.sum(sums, axis=0), (COLUMNS,)))


@triton.jit(
    do_not_specialize=["logits_stride", "count"],
    do_not_specialize_on_alignment=[
        "logits", "slots", "ids", "weights", "marks", "seats", "starts", "places", "place_rows", "x", "gate",
        "shared_weights",
    ],
)  # fmt: skip
def route_kernel(
    logits, logits_stride, slots, count, ids, weights, marks, seats, starts, places, place_rows, x, gate,
    shared_weights,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, RANKS: tl.constexpr, RANK_BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr, IS_ONE_ROW: tl.constexpr, PLACES: tl.constexpr, HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, 2 with a shared gate, else 1). IS_ONE_ROW: the list is that row's ids in order.

    PLACES: rows * RANKS, filled up. HIDDEN: columns of the shared gate.
    """
    row = tl.program_id(0)
    if tl.program_id(1) == 0:
        begin_dependent()
        is_used = tl.load(slots + row) >= 0
        chosen, share, total = choose(
            logits + row.to(tl.int64) * logits_stride, EXPERTS, BLOCK, RANKS, RANK_BLOCK
        )  # fmt: skip
        store_choice(row, is_used, chosen, share, total, ids, weights, RANKS, NORMALIZE)
        if IS_ONE_ROW:
            list_one_row(is_used, chosen, seats, starts, places, place_rows, RANKS)
        else:
            rank = tl.arange(0, RANK_BLOCK)
            mark_choices(marks, row, chosen, tl.where(is_used, rank, RANKS) < RANKS, EXPERTS)
            if arrive(marks, EXPERTS) == count - 1:
                list_work(marks, ids, seats, starts, places, place_rows, count, EXPERTS, BLOCK, RANKS, PLACES)
    else:
        store_shared_weight(row, x, gate, shared_weights, HIDDEN, COLUMNS)


def route_rows(
    logits: torch.Tensor, rows: WindowRows, normalize: bool, routes: Routes, shared: SharedGate | None
) -> None:
    """See `strata.kernels.router.route_rows`."""
    (count, ranks), experts, work = routes.ids.shape, logits.shape[1], routes.work
    route_kernel[(count, 1 if shared is None else 2)](
        logits, logits.stride(0), rows.slots, count, routes.ids, routes.weights, routes.marks,
        work.seats, work.starts, work.places, work.rows, *shared_arguments(shared, routes),
        EXPERTS=experts, BLOCK=triton.next_power_of_2(experts),
        RANKS=ranks, RANK_BLOCK=max(16, triton.next_power_of_2(ranks)),
        NORMALIZE=normalize, IS_ONE_ROW=count == 1, PLACES=triton.next_power_of_2(count * ranks),
        HIDDEN=0 if shared is None else shared.gate.numel(), COLUMNS=COLUMNS,
        num_warps=1, maxnreg=REGISTERS, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


def shared_arguments(shared: SharedGate | None, routes: Routes) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, gate and weights of the shared expert; without one tensors that nobody reads."""
    if shared is None:
        return (routes.weights,) * 3
    assert routes.shared_weights is not None  # checked by the caller
    return shared.x, shared.gate, routes.shared_weights
