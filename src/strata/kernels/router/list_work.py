"""The list of work of several rows, made by the program that ends last. Knows marks; knows no logit.

A row chooses an expert once at most, so the rows of an expert are the bits of a word, and an expert's places in rising
order are its rows. Programs set bits in any order and count how many have come; what follows is integers of all rows
and depends on no order. The last program leaves every mark at zero for the next launch.

marks int32: a word of rows for each expert, the word of used rows and how many programs have come; from FIRSTS on, room
for the position of each expert's first place, which is no mark.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.router import MOST_EXPERTS

FIRSTS = tl.constexpr(MOST_EXPERTS + 2)


@triton.jit
def bits_of(word):
    """How many bits of int32 are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24) & 0xFF


@triton.jit
def rows_before(word, row):
    """How many of the rows in a word come before `row`."""
    return bits_of(word & ((row * 0 + 1 << row) - 1))


@triton.jit
def mark_choices(marks, row, chosen, is_marked, EXPERTS: tl.constexpr):
    """Set the row's bit in the words of the experts `chosen` where `is_marked`, and in that of used rows."""
    bit = tl.zeros(chosen.shape, tl.int32) + (row * 0 + 1 << row)
    tl.atomic_or(marks + tl.where(is_marked, chosen, 0), bit, mask=is_marked, sem="relaxed")
    is_first = is_marked & (tl.arange(0, chosen.shape[0]) == 0)
    tl.atomic_or(marks + EXPERTS + chosen * 0, bit, mask=is_first, sem="relaxed")


@triton.jit
def arrive(marks, EXPERTS: tl.constexpr):
    """How many programs came before this one; all that those wrote can be read if they are all."""
    tl.debug_barrier()
    before = tl.atomic_add(marks + EXPERTS + 1, 1, sem="acq_rel")
    tl.debug_barrier()
    return before


@triton.jit
def list_work(
    marks, ids, seats, starts, places, place_rows, count,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, RANKS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Write the list of `count` rows, once every one has come: see `strata.kernels.router.reference.list_work`."""
    expert, place = tl.arange(0, BLOCK), tl.arange(0, PLACES)
    firsts = marks + FIRSTS
    exists, row = place < count * RANKS, place // RANKS
    id = tl.load(ids + place, mask=exists, other=-1)
    of_expert = bits_of(tl.load(marks + expert, mask=expert < EXPERTS, other=0))
    tl.store(firsts + expert, tl.cumsum(of_expert, axis=0) - of_expert, mask=expert < EXPERTS)
    used_rows = tl.load(marks + EXPERTS)
    used = bits_of(used_rows) * RANKS
    tl.debug_barrier()
    is_used = exists & (id >= 0)
    at = tl.where(is_used, id, 0)
    word, first = tl.load(marks + at), tl.load(firsts + at)
    before = rows_before(word, row)
    unused_before = (row - rows_before(used_rows + row * 0, row)) * RANKS + place % RANKS
    position = tl.where(is_used, first + before, used + unused_before)
    # The entry of an expert is the position of its first place; the others' entries end where its places end.
    start = tl.where(is_used, tl.where(before == 0, first, first + bits_of(word)), used)
    tl.store(seats + position, tl.where(is_used, id, 0), mask=exists)
    tl.store(starts + position, start, mask=exists)
    tl.store(places + position, place, mask=exists)
    tl.store(place_rows + position, row, mask=exists)
    tl.store(starts + count * RANKS, used)
    tl.debug_barrier()
    tl.store(marks + expert, expert * 0, mask=expert < EXPERTS)
    tl.store(marks + EXPERTS + tl.arange(0, 2), tl.zeros((2,), tl.int32))
