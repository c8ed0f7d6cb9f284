"""Kernels that call parts of the attention of reads by themselves, for tests. Knows no expected value."""
# mypy: allow-untyped-defs, no-check-untyped-defs

import triton
import triton.language as tl

from strata.kernels.attention_read.softmax import next_step


@triton.jit
def step_kernel(scores, values, peak, total, sums):
    """One step over 16 cells of 16 columns for 16 rows, in place."""
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    new_peak, new_total, new_sums = next_step(
        tl.load(scores + at), tl.load(values + at), tl.load(peak + i), tl.load(total + i), tl.load(sums + at)
    )
    tl.store(peak + i, new_peak)
    tl.store(total + i, new_total)
    tl.store(sums + at, new_sums)
