"""Rows of experts added up on a GPU in the order of the definition. Knows no expert and no checks."""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options

COLUMNS_A_PROGRAM = 128  # a warp's four values a thread: one row of 2,560 columns is 20 programs


@triton.jit(
    do_not_specialize=["hidden"],
    do_not_specialize_on_alignment=["rows", "weights", "computed", "shared", "shared_weights", "out"],
)
def combine_kernel(
    rows, weights, computed, shared, shared_weights, out, hidden,
    RANKS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_SHARED: tl.constexpr, HAS_SHARED_WEIGHTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """rows [n, RANKS, hidden], weights and computed [n, RANKS], shared [n, hidden]; grid (hidden / COLUMNS, n)."""
    begin_dependent()
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = column < hidden
    total = tl.zeros((COLUMNS,), tl.float32)
    for rank in tl.static_range(RANKS):
        place = row * RANKS + rank
        columns = hidden
        if HAS_MASK:
            columns = hidden * tl.load(computed + place).to(tl.int32)
        is_read = column < columns
        value = tl.load(rows + place * hidden + column, mask=is_read, other=0.0)
        weight = tl.broadcast_to(tl.load(weights + place), (COLUMNS,))
        total = tl.where(is_read, tl.fma(weight, value, total), total)
    if HAS_SHARED:
        value = tl.load(shared + row * hidden + column, mask=is_inside, other=0.0)
        if HAS_SHARED_WEIGHTS:
            total = tl.fma(tl.broadcast_to(tl.load(shared_weights + row), (COLUMNS,)), value, total)
        else:
            total += value  # fma(1, value, total)
    tl.store(out + row * hidden + column, total, mask=is_inside)


def combine_rows(
    rows: torch.Tensor,
    weights: torch.Tensor,
    is_computed: torch.Tensor | None,
    shared: torch.Tensor | None,
    shared_weights: torch.Tensor | None,
) -> torch.Tensor:
    """Launches only: safe to capture in a graph."""
    count, ranks, hidden = rows.shape
    out = torch.empty(count, hidden, dtype=torch.float32, device=rows.device)
    if count == 0:
        return out
    mask = weights if is_computed is None else is_computed.view(torch.uint8)
    combine_kernel[(triton.cdiv(hidden, COLUMNS_A_PROGRAM), count)](
        rows, weights, mask, rows if shared is None else shared, weights if shared_weights is None else shared_weights,
        out, hidden,
        RANKS=ranks, HAS_MASK=is_computed is not None, HAS_SHARED=shared is not None,
        HAS_SHARED_WEIGHTS=shared_weights is not None,
        COLUMNS=COLUMNS_A_PROGRAM, num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
    return out
