"""Collecting a window's rows of a table that lies in a file, on a GPU: programs of one warp wait, then copy over PCIe.

Knows the mailbox; knows no file and no hash. Floor: the last look's round trip, then 4 bytes a column over PCIe.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.instructions import load_acquire, nanoseconds
from strata.kernels.ngram_rows.arguments import AskedTable
from strata.kernels.packed_rows.blocks_out import store_blocks
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.layout import BLOCK_COLUMNS

BLOCKS_A_PROGRAM = 16  # a row of 2,560 columns is 5 programs, and 32 rows are 160: they all run at once


@triton.jit(
    do_not_specialize=["row_step", "block_step"],
    do_not_specialize_on_alignment=["done", "number", "seen", "times", "slots"],
)
def collect_kernel(
    done, out, number, seen, times, slots, plain, q, records, row_step, block_step,
    COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Grid (COLUMNS / 32 / BLOCKS, rows). The first program alone looks across the link, and tells the others."""
    begin_dependent()
    part, row = tl.program_id(0), tl.program_id(1)
    awaited, slot = tl.load(number), tl.load(slots + row)
    if (part == 0) & (row == 0):
        between, waiting = tl.load(times), tl.load(times + 1)
        started = nanoseconds()
        flag = load_acquire(done)
        while flag < awaited:  # a raised flag is past every number
            flag = load_acquire(done)
        tl.atomic_xchg(seen, awaited, sem="release", scope="gpu")
        tl.store(times, between + started)  # asking took its own time away when it rang
        tl.store(times + 1, waiting + nanoseconds() - started)
    else:
        flag = load_acquire(seen)
        while flag != awaited:  # of an older request, or of one before the numbers began again
            flag = load_acquire(seen)
    if slot >= 0:
        block = part * BLOCKS + tl.arange(0, BLOCKS)
        column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
        # + 0, no flag is negative: so no compiler asks for rows before the flag was seen.
        at = row.to(tl.int64) * COLUMNS + column
        values = tl.load(out + at + (flag >> 31) * 16, mask=column < COLUMNS, other=0.0)
        if HAS_PLAIN:
            tl.store(plain + at, values, mask=column < COLUMNS)
        if HAS_QUANTIZED:
            store_blocks(values, q, records, row, block, COLUMNS // 32, row_step, block_step)


def ngram_collect(rows: WindowRows, asked: AskedTable, out: RowsOut) -> None:
    """See `strata.kernels.ngram_rows.ngram_collect`. One launch."""
    mailbox, state = asked.mailbox, asked.state
    unused = state.number  # stands where the kernel writes nothing
    steps = (unused, unused, 0, 0) if out.quantized is None else out.quantized.arguments
    options = dependent_options() if mailbox.gate is None else {}  # no kernel stands before it then
    blocks = triton.cdiv(asked.columns, BLOCK_COLUMNS)
    collect_kernel[(triton.cdiv(blocks, BLOCKS_A_PROGRAM), rows.count)](
        mailbox.done, mailbox.out, state.number, state.seen, state.times, rows.slots,
        unused if out.plain is None else out.plain, *steps,
        COLUMNS=asked.columns, BLOCKS=BLOCKS_A_PROGRAM, HAS_PLAIN=out.plain is not None,
        HAS_QUANTIZED=out.quantized is not None, num_warps=1, enable_fp_fusion=False, **options,
    )  # fmt: skip
