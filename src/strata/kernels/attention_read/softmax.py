"""Softmax's mixture of values in steps over cells, for Triton kernels. Knows no cell: scores and values are given."""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def next_step(scores, value, peak, total, sums):
    """peak, total [M] and sums [M, D] with the scores [M, cells] and values [cells, D] of the next cells.

    Cells that a row does not see have the score -inf; it has seen one or sees one now. Shares are rounded before they
    are added up too, so that they are shares of one. A step of which a row sees nothing changes none of its bits.
    """
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    shares = tl.exp(scores - new_peak[:, None]).to(tl.bfloat16)
    fade = tl.exp(peak - new_peak)
    sums = tl.dot(shares, value, sums * fade[:, None])
    return new_peak, total * fade + tl.sum(shares.to(tl.float32), axis=1), sums


@triton.jit
def finish(sums, total, qkv, head, is_row, out, at, DIM: tl.constexpr, IS_GATED: tl.constexpr):
    """sums [M, DIM] over total [M], times the sigmoid of the gate, to out + at. qkv: of the row, or of each [M, 1]."""
    attended = tl.div_rn(sums, tl.zeros(sums.shape, tl.float32) + total[:, None])
    if IS_GATED:
        gate = tl.load(qkv + (head * 2 + 1)[:, None] * DIM + tl.arange(0, DIM)[None, :], mask=is_row, other=0.0)
        attended = tl.div_rn(attended, 1.0 + tl.exp(-gate))
    tl.store(out + at, attended.to(tl.bfloat16), mask=is_row)
