"""Asking for a window's rows of a table that lies in a file, on a GPU: one program hashes them all and rings.

Knows the hash and the mailbox; knows no file. Floor: two reads of the GPU's memory in a row, 8 bytes a row and head
over PCIe, and the door behind them.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.expert_plan.plan import OPENED, lower_gate
from strata.kernels.instructions import nanoseconds, store_release
from strata.kernels.ngram_rows.arguments import AskedTable, NgramHash
from strata.kernels.ngram_rows.triton import table_row_of
from strata.kernels.window_rows import WindowRows

WARPS = 4
LEAST_PLACES = 32 * WARPS  # at a time: fewer take as long
MOST_PLACES = 512  # a window's; the rows of a prompt are more


@triton.jit(
    do_not_specialize=["end_of_text", "rows", "index"],
    do_not_specialize_on_alignment=[
        "tokens", "slots", "first_rows", "history", "multipliers", "sizes", "starts", "door", "done", "gate", "header",
        "entries", "number", "times",
    ],
)  # fmt: skip
def request_kernel(
    tokens, slots, first_rows, history, multipliers, sizes, starts, end_of_text, rows, index,
    door, done, gate, header, entries, number, times,
    NGRAM_SIZE: tl.constexpr, HEADS: tl.constexpr, PLACES: tl.constexpr, HAS_GATE: tl.constexpr,
):  # fmt: skip
    """One program; PLACES of rows * HEADS at a time. Where no row is used nobody is asked."""
    begin_dependent()
    rung, time, used = tl.load(number), tl.load(times), tl.zeros((PLACES,), tl.int32)
    if HAS_GATE:
        lower_gate(gate, done)
    for first in range(0, rows * HEADS, PLACES):
        place = first + tl.arange(0, PLACES)
        row, head, exists = tl.minimum(place // HEADS, rows - 1), place % HEADS, place < rows * HEADS
        slot = tl.load(slots + row)
        is_used = exists & (slot >= 0)
        at_row = table_row_of(
            tokens, history, multipliers, sizes, starts, row, tl.maximum(slot, 0).to(tl.int64),
            row - tl.load(first_rows + row), head, end_of_text, NGRAM_SIZE, HEADS // (NGRAM_SIZE - 1),
        )  # fmt: skip
        entry = (place.to(tl.int64) << 32) | tl.where(is_used, at_row, 0xFFFFFFFF)  # as two words: row or -1, place
        tl.store(entries.to(tl.pointer_type(tl.int64)) + place, entry, mask=exists)
        used += is_used.to(tl.int32)
    field = tl.arange(0, 4)
    values = tl.where(field == 0, index, tl.where(field == 1, rows, rows * HEADS))
    tl.store(header + field, values, mask=field < 3)
    tl.debug_barrier()  # all threads' stores lie before the one thread's release
    if tl.sum(used, axis=0) > 0:
        store_release(door, rung + 1)
        tl.store(number, rung + 1)
        tl.store(times, time - nanoseconds())  # collecting adds its start
    elif HAS_GATE:
        tl.store(gate, OPENED)  # read by the stream, behind this launch


def ngram_ask(rows: WindowRows, history: torch.Tensor, hash: NgramHash, asked: AskedTable) -> None:
    """See `strata.kernels.ngram_rows.ngram_ask`. One launch."""
    mailbox, state = asked.mailbox, asked.state
    places = triton.next_power_of_2(rows.count * hash.heads)
    request_kernel[(1,)](
        rows.tokens, rows.slots, rows.first_rows, history, hash.multipliers, hash.head_sizes, hash.head_starts,
        hash.end_of_text, rows.count, asked.index,
        mailbox.door, mailbox.done, mailbox.done if mailbox.gate is None else mailbox.gate, mailbox.header,
        mailbox.entries, state.number, state.times,
        NGRAM_SIZE=hash.ngram_size, HEADS=hash.heads,
        PLACES=min(MOST_PLACES, max(LEAST_PLACES, places)),
        HAS_GATE=mailbox.gate is not None, num_warps=WARPS, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
