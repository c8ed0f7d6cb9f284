"""Planning on a GPU in one launch: one program plans, beside it one for each row's activations; the last one rings.

Where the mailbox has a gate, one more lowers it meanwhile (`gate.py`).

Knows tables and the mailbox; knows no expert's bytes. All are integers, or copies of bits. Floor: three reads of the
GPU's memory in a row, and one order of writes over PCIe (hidden * 9 / 8 bytes a row that asks, 8 a place) before the
door.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import allow_dependents, dependent_options, wait_for_predecessor
from strata.kernels.expert_plan.tables import OPEN, RAISED, LayerTables, Mailbox, PlannedWork, PlanState
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.instructions import load_acquire, nanoseconds, prefetch_to_l2, store_fenced, store_release
from strata.kernels.packed_rows.rows_out import Activations, RowsOut

LEAST_PLACES = 16  # of a program
WARPS = 4
REGISTERS = 255  # most of a thread: what a program reads is then asked for at once
STOPPED, OPENED = tl.constexpr(RAISED), tl.constexpr(OPEN)
RINGS = tl.constexpr(1 << 16)  # in the count of programs that have come: the planning one, with places for the CPU


@triton.jit(
    do_not_specialize=["rows", "layer", "experts", "row_step", "block_step"],
    do_not_specialize_on_alignment=[
        "seats", "starts", "places", "place_rows", "resident", "in_place", "share", "asked", "totals", "values",
        "records", "door", "done", "gate", "header", "entries", "row_words", "row_scales", "number", "arrivals",
        "times", "new_starts", "new_places", "new_rows", "addresses", "cpu_places", "cpu_count",
    ],
)  # fmt: skip
def plan_kernel(
    seats, starts, places, place_rows, rows, layer, experts,
    resident, in_place, share, asked, totals,
    values, records, row_step, block_step,
    door, done, gate, header, entries, row_words, row_scales,
    number, arrivals, times,
    new_starts, new_places, new_rows, addresses, cpu_places, cpu_count,
    RANKS: tl.constexpr, PLACES: tl.constexpr, HIDDEN: tl.constexpr, IS_QUANTIZED: tl.constexpr,
    WORDS: tl.constexpr, SCALES: tl.constexpr, HAS_GATE: tl.constexpr,
):  # fmt: skip
    """Grid (1 + rows + HAS_GATE). PLACES: rows * RANKS, filled up. WORDS, SCALES: of a row in the mailbox, too."""
    allow_dependents()
    program, count = tl.program_id(0), rows * RANKS
    if program == 0:
        ask_for_tables(resident, in_place, share, experts, count)
    wait_for_predecessor()
    rung, time, used = tl.load(number), tl.load(times), tl.load(starts + count)
    place = tl.arange(0, PLACES)
    expert = tl.load(seats + place, mask=place < count, other=0)
    row = tl.load(place_rows + place, mask=place < count, other=-1)
    if program == 0:
        start = tl.load(starts + place, mask=place < count, other=0)
        id = tl.load(places + place, mask=place < count, other=0)
        of_cpu = plan_places(
            expert, start, id, row, used, count, rows, layer, experts, resident, in_place, share, asked, totals,
            header, entries, new_starts, new_places, new_rows, addresses, cpu_places, cpu_count, PLACES,
        )  # fmt: skip
        coming = 1 + tl.where(of_cpu > 0, RINGS, 0)
    elif program <= rows:
        is_of_row = (place < used) & (row == program - 1)
        posted = (program - 1).to(tl.int64)
        bits, d = load_row(
            values, records, row_step, block_step, posted, HIDDEN, IS_QUANTIZED, WORDS, SCALES
        )  # fmt: skip
        asks = asks_for_any(resident, expert, is_of_row)
        post_row(bits, d, row_words, row_scales, posted, asks, HIDDEN, IS_QUANTIZED)
        coming = 1
    else:
        if HAS_GATE:
            lower_gate(gate, done)
        coming = 1
    tl.debug_barrier()  # all threads' stores lie before the one thread's release
    come = coming + tl.atomic_add(arrivals, coming, sem="acq_rel", scope="gpu")
    if come % RINGS == tl.num_programs(0):
        tl.store(arrivals, 0)
        if come >= RINGS:
            ring(door, number, times, rung, time)
        elif HAS_GATE:
            tl.store(gate, OPENED)  # read by the stream, behind this launch


@triton.jit
def ask_for_tables(resident, in_place, share, experts, count):
    """Into the L2 cache, while the kernel before still runs: windows leave none of them there for the next one.

    Kernels in between do not write them, and if they did no value would hang on what a cache holds.
    """
    prefetch_to_l2(resident, experts * 8 // 16 * 16)
    prefetch_to_l2(in_place, experts * 8 // 16 * 16)
    prefetch_to_l2(share, tl.minimum(count, experts) * 4 // 16 * 16)


@triton.jit
def plan_places(
    expert, start, id, row, used, count, rows, layer, experts, resident, in_place, share, asked, totals,
    header, entries, new_starts, new_places, new_rows, addresses, cpu_places, cpu_count, PLACES: tl.constexpr,
):  # fmt: skip
    """Write the planned list and what the CPU is asked for but its rows; returns how many places are the CPU's.

    expert, start, id and row [PLACES]: of every position of the routed list, of which `used` are in use.
    """
    place = tl.arange(0, PLACES)
    exists = place < count
    seat_at, in_place_at, is_in_place, is_on_cpu = choose(
        expert, start, used, tl.minimum(count, experts), resident, in_place, share, asked, totals, PLACES
    )  # fmt: skip
    position, of_gpu, of_cpu, cpu_position = sort(place, used, is_in_place, is_on_cpu)
    request(header, entries, layer, rows, of_cpu, cpu_position, expert, id, is_on_cpu)
    is_on_gpu = (place < used) & (is_on_cpu == 0)
    tl.store(new_starts + position, tl.where(is_on_gpu, start + position - place, of_gpu), mask=exists)
    tl.store(new_starts + count, of_gpu)
    tl.store(new_places + position, id, mask=exists)
    tl.store(new_rows + position, row, mask=exists)
    tl.store(addresses + position, tl.where(is_in_place, in_place_at, seat_at), mask=exists)
    tl.store(cpu_places + cpu_position, id, mask=is_on_cpu)
    tl.store(cpu_count, of_cpu)
    return of_cpu


@triton.jit
def ring(door, number, times, rung, time):
    """The door rises to the number behind `rung`, behind all that the program stored before a barrier."""
    store_release(door, rung + 1)
    tl.store(number, rung + 1)
    tl.store(times, time - nanoseconds())  # collecting adds its start


@triton.jit
def choose(
    expert, start, used, most_misses, resident, in_place, share, asked, totals, PLACES: tl.constexpr
):  # fmt: skip
    """Addresses in seats and in place, and which places are computed in place and on the CPU: [PLACES] each.

    Counts what was asked for and where it is, too, without waiting for what the counters were.
    """
    place, kind = tl.arange(0, PLACES), tl.arange(0, 4)
    shares = tl.load(share + 1 + place, mask=place < most_misses, other=0)  # of 1, 2 .. misses
    is_used = place < used
    is_first = is_used & (start == place)
    seat_at = tl.load(resident + expert, mask=is_used, other=0)
    in_place_at = tl.load(in_place + expert, mask=is_used, other=0)
    tl.atomic_add(asked + expert, expert * 0 + 1, mask=is_first, sem="relaxed")
    is_miss = is_used & (seat_at == 0)
    is_new = (is_miss & is_first).to(tl.int32)
    so_far, misses = tl.cumsum(is_new, axis=0), tl.sum(is_new, axis=0)
    shared = tl.sum(tl.where(place + 1 == misses, shares, 0), axis=0)
    is_in_place = is_miss & (so_far > misses - shared) & (in_place_at != 0)
    is_on_cpu = is_miss & (is_in_place == 0)
    # Distinct experts in seats, in place and on the CPU: ten bits each, at most 512 places.
    shift = tl.where(is_on_cpu, 20, tl.where(is_in_place, 10, 0))
    counts = tl.sum(tl.where(is_first, (shift * 0 + 1) << shift, 0), axis=0)
    tl.atomic_add(totals + kind, (counts >> (10 * kind)) & 0x3FF, mask=kind < 3, sem="relaxed")
    return seat_at, in_place_at, is_in_place, is_on_cpu


@triton.jit
def sort(place, used, is_in_place, is_on_cpu):
    """Places in use: those in place, in seats, on the CPU, each kind in its order; unused ones stay behind.

    The new positions, how many are the GPU's and the CPU's, and which of the CPU's each is.
    """
    kinds = is_in_place.to(tl.int32) + (is_on_cpu.to(tl.int32) << 16)
    before, total = tl.cumsum(kinds, axis=0) - kinds, tl.sum(kinds, axis=0)
    in_place_before, cpu_before = before & 0xFFFF, before >> 16
    in_place, of_cpu = total & 0xFFFF, total >> 16
    position = in_place + place - in_place_before - cpu_before
    position = tl.where(is_in_place, in_place_before, position)
    position = tl.where(is_on_cpu, used - of_cpu + cpu_before, position)
    return tl.where(place < used, position, place), used - of_cpu, of_cpu, cpu_before


@triton.jit
def request(header, entries, layer, rows, of_cpu, cpu_position, expert, id, is_on_cpu):
    """Write what the CPU is asked for, if anything. An entry's words, expert and place, go as one of eight bytes."""
    entry = (id.to(tl.int64) << 32) | expert.to(tl.int64)
    tl.store(entries.to(tl.pointer_type(tl.int64)) + cpu_position, entry, mask=is_on_cpu)
    field = tl.arange(0, 4)
    values = tl.where(field == 0, layer, tl.where(field == 1, rows, of_cpu))
    tl.store(header + field, values, mask=field < tl.where(of_cpu > 0, 3, 0))


@triton.jit
def load_row(
    values, records, row_step, block_step, row, HIDDEN: tl.constexpr, IS_QUANTIZED: tl.constexpr,
    WORDS: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One row's activations as 4-byte words [WORDS], and their scales [SCALES] where they are quantized.

    Of quantized ones word w of a block lies in the half w // 4 of `Activations.values`' number w % 4.
    """
    word, scale = tl.arange(0, WORDS), tl.arange(0, SCALES)
    source = values.to(tl.pointer_type(tl.int32))
    if IS_QUANTIZED:
        block = row * row_step + (word // 8) * block_step
        bits = tl.load(source + block * 8 + word % 4 * 2 + word % 8 // 4, mask=word < HIDDEN // 4, other=0)
        of_scales = records.to(tl.pointer_type(tl.int32)) + (row * row_step + scale * block_step) * 2
        d = tl.load(of_scales, mask=scale < HIDDEN // 32, other=0)
    else:
        bits = tl.load(source + row * HIDDEN + word, mask=word < HIDDEN, other=0)
        d = scale * 0
    return bits, d


@triton.jit
def post_row(bits, d, row_words, row_scales, row, asks, HIDDEN: tl.constexpr, IS_QUANTIZED: tl.constexpr):
    """What `load_row` gives into the mailbox if `asks` is 1, nothing if it is 0."""
    word, scale = tl.arange(0, bits.shape[0]), tl.arange(0, d.shape[0])
    target = row_words.to(tl.pointer_type(tl.int32))
    if IS_QUANTIZED:
        tl.store(target + row * (HIDDEN // 4) + word, bits, mask=word < HIDDEN // 4 * asks)
        d_target = row_scales.to(tl.pointer_type(tl.int32)) + row * (HIDDEN // 32) + scale
        tl.store(d_target, d, mask=scale < HIDDEN // 32 * asks)
    else:
        tl.store(target + row * HIDDEN + word, bits, mask=word < HIDDEN * asks)


@triton.jit
def lower_gate(gate, done):
    """Down, and up again if nobody answers any more. Takes two ways over PCIe, which the plan takes as well."""
    store_fenced(gate, 0)
    tl.debug_barrier()
    if load_acquire(done) == STOPPED:
        store_fenced(gate, OPENED)


@triton.jit
def asks_for_any(resident, expert, is_of_row):
    """1 if an expert of the row has no seat, else 0. (The GPU may read it in place: the row is then posted in vain.)"""
    is_miss = tl.load(resident + expert, mask=is_of_row, other=1) == 0
    return tl.max(is_miss.to(tl.int32), axis=0)


def plan_experts(
    routed: ExpertWork,
    x: RowsOut,
    tables: LayerTables,
    mailbox: Mailbox,
    layer: int,
    state: PlanState,
    planned: PlannedWork,
) -> None:
    """See `strata.kernels.expert_plan.plan_experts`."""
    places, work = routed.places.numel(), planned.work
    rows, (source, targets) = places // routed.ranks, source_and_targets(x, mailbox)
    has_gate, gate = mailbox.gate is not None, mailbox.done if mailbox.gate is None else mailbox.gate
    plan_kernel[(1 + rows + has_gate,)](
        routed.seats, routed.starts, routed.places, routed.rows, rows, layer, tables.asked.numel(),
        tables.resident, tables.in_place, tables.share, tables.asked, tables.totals, *source.arguments,
        mailbox.door, mailbox.done, gate, mailbox.header, mailbox.entries, *targets,
        state.number, state.arrivals, state.times,
        work.starts, work.places, work.rows, planned.addresses, planned.cpu_places, planned.cpu_count,
        RANKS=routed.ranks, PLACES=max(LEAST_PLACES, triton.next_power_of_2(places)), HAS_GATE=has_gate,
        **sizes_of_row(mailbox), num_warps=WARPS, maxnreg=REGISTERS, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


def source_and_targets(x: RowsOut, mailbox: Mailbox) -> tuple[Activations, tuple[torch.Tensor, torch.Tensor]]:
    """The rows that go into the mailbox, and where words and scales of them go; plain rows have no scales."""
    if mailbox.x is not None:
        assert x.plain is not None  # checked by the caller
        return Activations(x.plain, x.plain), (mailbox.x, mailbox.x)
    assert x.quantized is not None and mailbox.q is not None and mailbox.d is not None  # checked by the caller
    return x.quantized, (mailbox.q, mailbox.d)


def sizes_of_row(mailbox: Mailbox) -> dict[str, int | bool]:
    """Constexpr arguments that say how a row lies in the mailbox."""
    hidden, is_quantized = mailbox.out.shape[2], mailbox.x is None
    words = triton.next_power_of_2(hidden // 4 if is_quantized else hidden)
    scales = triton.next_power_of_2(max(1, hidden // 32))
    return {"HIDDEN": hidden, "IS_QUANTIZED": is_quantized, "WORDS": words, "SCALES": scales}
