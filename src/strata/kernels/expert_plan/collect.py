"""Collecting the CPU's rows on a GPU in one launch: a few programs wait, then copy places over PCIe.

Knows the mailbox; knows no expert. Floor: the last poll's round trip, then hidden * 4 bytes a
place over PCIe; nothing of it where the CPU has no places.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import allow_dependents, dependent_options, wait_for_predecessor
from strata.kernels.expert_plan.tables import Mailbox, PlannedWork, PlanState
from strata.kernels.instructions import load_acquire, load_acquire_in_first_warp, nanoseconds

WARPS = 8
# Of a program. One that copies them all need not tell others; more would take registers from kernels that start early.
PLACES = 4
MOST_COLUMNS = 4096  # at a time: 64 registers of a thread for all places


@triton.jit(do_not_specialize_on_alignment=["done", "number", "seen", "times", "cpu_places", "cpu_count"])
def collect_kernel(
    done, out, number, seen, times, cpu_places, cpu_count, by_rank,
    HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr, HOLDS_NEXT: tl.constexpr,
):  # fmt: skip
    """Programs: one for every PLACES places, which waits for them. HOLDS_NEXT: see `Mailbox.holds_next`.

    The first program alone looks across the link, and tells the others in the GPU's memory: looks of several at one
    word of main memory are served one after another, 0.6 us each on an H200.
    """
    if not HOLDS_NEXT:
        allow_dependents()
    wait_for_predecessor()
    program, count, awaited = tl.program_id(0), tl.load(cpu_count), tl.load(number)
    index = program * PLACES + tl.arange(0, PLACES)
    place = tl.load(cpu_places + index, mask=index < count, other=0)
    between, waiting = tl.load(times), tl.load(times + 1)
    if program * PLACES < count:
        started = nanoseconds()
        if program == 0:
            flag = load_acquire_in_first_warp(done, awaited)
            while flag < awaited:  # a raised flag is past every number
                flag = load_acquire_in_first_warp(done, awaited)
            tl.debug_barrier()  # the others' loads lie behind the one warp's last look
            if count > PLACES:
                tl.atomic_xchg(seen, awaited, sem="release", scope="gpu")
        else:
            flag = load_acquire(seen)
            while flag != awaited:  # of an older request, or of one before the numbers began again
                flag = load_acquire(seen)
        ended = nanoseconds()
        if HOLDS_NEXT:
            allow_dependents()  # a program without places allows them by its end
        copy_places(out, by_rank, place, index < count, flag, HIDDEN, COLUMNS)
        if program == 0:
            tl.store(seen, awaited)
            tl.store(times, between + started)  # the plan took its own time away when it rang
            tl.store(times + 1, waiting + ended - started)


@triton.jit
def copy_places(out, by_rank, place, is_asked, flag, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of the mailbox to where they belong, all of them asked for before the first is stored."""
    # + 0, no flag is negative: so no compiler asks for rows before the flag was seen. The acquiring load has emptied
    # this processor's own cache, and plain loads of whole lines are what the link is fast with.
    start = place * HIDDEN + (flag >> 31) * 16
    for before in tl.static_range(0, HIDDEN, COLUMNS):
        column = before + tl.arange(0, COLUMNS)
        at, exists = start[:, None] + column[None, :], is_asked[:, None] & (column < HIDDEN)[None, :]
        tl.store(by_rank + at, tl.load(out + at, mask=exists), mask=exists)


def collect_rows(mailbox: Mailbox, state: PlanState, planned: PlannedWork, by_rank: torch.Tensor) -> None:
    """See `strata.kernels.expert_plan.collect_rows`."""
    hidden = by_rank.shape[2]
    options = dependent_options() if mailbox.gate is None else {}  # no kernel stands before it then
    collect_kernel[(triton.cdiv(planned.cpu_places.numel(), PLACES),)](
        mailbox.done, mailbox.out, state.number, state.seen, state.times,
        planned.cpu_places, planned.cpu_count, by_rank,
        HIDDEN=hidden, COLUMNS=min(MOST_COLUMNS, triton.next_power_of_2(hidden)), PLACES=PLACES,
        HOLDS_NEXT=mailbox.holds_next, num_warps=WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
