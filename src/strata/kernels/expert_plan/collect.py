"""Collecting the CPU's rows on a GPU in one launch: programs of one warp that wait, then copy places over PCIe.

Knows the mailbox; knows no expert. Floor: the last poll's round trip, then hidden * 4 bytes a place over PCIe; nothing
of it where the CPU has no places.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.expert_plan.tables import Mailbox, PlannedWork, PlanState
from strata.kernels.instructions import load_acquire, nanoseconds

# Of one warp each, and a place keeps 16 bytes of 32 threads in flight up to 32 times: 64 programs fill any link.
MOST_PROGRAMS = 64
MOST_COLUMNS = 4096  # at a time: 128 registers of a thread


@triton.jit(
    do_not_specialize_on_alignment=["done", "number", "seen", "times", "cpu_places", "cpu_count"],
)
def collect_kernel(
    done, out, number, seen, times, cpu_places, cpu_count, by_rank, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr
):
    """Grid (programs), one for each place at most: program i copies the places i, i + programs and so on.

    The first program alone looks across the link, and tells the others in the GPU's memory: looks of several at one
    word of main memory are served one after another, 0.6 us each on an H200.
    """
    begin_dependent()
    first, count, awaited = tl.program_id(0), tl.load(cpu_count), tl.load(number)
    between, waiting = tl.load(times), tl.load(times + 1)
    if first < count:
        if first == 0:
            started = nanoseconds()
            flag = load_acquire(done)
            while flag < awaited:  # a raised flag is past every number
                flag = load_acquire(done)
            tl.atomic_xchg(seen, awaited, sem="release", scope="gpu")
            tl.store(times, between + started)  # the plan took its own time away when it rang
            tl.store(times + 1, waiting + nanoseconds() - started)
        else:
            flag = load_acquire(seen)
            while flag != awaited:  # of an older request, or of one before the numbers began again
                flag = load_acquire(seen)
        column = tl.arange(0, COLUMNS)
        for index in range(first, count, tl.num_programs(0)):
            # + 0, no flag is negative: so no compiler asks for rows before the flag was seen. The acquiring load has
            # emptied this processor's own cache, and plain loads of whole lines are what the link is fast with.
            start = tl.load(cpu_places + index) * HIDDEN + (flag >> 31) * 16
            for before in tl.static_range(0, HIDDEN, COLUMNS):
                exists = before + column < HIDDEN
                values = tl.load(out + start + before + column, mask=exists)
                tl.store(by_rank + start + before + column, values, mask=exists)


def collect_rows(mailbox: Mailbox, state: PlanState, planned: PlannedWork, by_rank: torch.Tensor) -> None:
    """See `strata.kernels.expert_plan.collect_rows`."""
    hidden, places = by_rank.shape[2], planned.cpu_places.numel()
    options = dependent_options() if mailbox.gate is None else {}  # no kernel stands before it then
    collect_kernel[(min(places, MOST_PROGRAMS),)](
        mailbox.done, mailbox.out, state.number, state.seen, state.times,
        planned.cpu_places, planned.cpu_count, by_rank,
        HIDDEN=hidden, COLUMNS=min(MOST_COLUMNS, triton.next_power_of_2(hidden)),
        num_warps=1, enable_fp_fusion=False, **options,
    )  # fmt: skip
