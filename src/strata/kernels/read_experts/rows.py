"""What the expert part of a read does row by row on a GPU: routing, the sum of the ranks. Knows no expert's bytes."""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.router.triton import REGISTERS, choose

COLUMNS = 1024  # of a program that sums ranks


@triton.jit(do_not_specialize=["logits_stride"], do_not_specialize_on_alignment=["logits", "ids", "weights"])
def route_many_kernel(
    logits, logits_stride, ids, weights, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, RANKS: tl.constexpr,
    RANK_BLOCK: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    begin_dependent()
    row = tl.program_id(0)
    rank = tl.arange(0, RANK_BLOCK)
    chosen, share, total = choose(
        logits + row.to(tl.int64) * logits_stride, EXPERTS, BLOCK, RANKS, RANK_BLOCK
    )  # fmt: skip
    weight = tl.div_rn(share, total) if NORMALIZE else share
    tl.store(ids + row * RANKS + rank, chosen, mask=rank < RANKS)
    tl.store(weights + row * RANKS + rank, weight, mask=rank < RANKS)


def route_many(logits: torch.Tensor, normalize: bool, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """See `strata.kernels.read_experts.route_many`."""
    (rows, experts), ranks = logits.shape, ids.shape[1]
    route_many_kernel[(rows,)](
        logits, logits.stride(0), ids, weights,
        EXPERTS=experts, BLOCK=triton.next_power_of_2(experts), RANKS=ranks,
        RANK_BLOCK=max(16, triton.next_power_of_2(ranks)), NORMALIZE=normalize,
        num_warps=1, maxnreg=REGISTERS, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


@triton.jit(do_not_specialize=["hidden"], do_not_specialize_on_alignment=["weights", "shared_weights"])
def combine_ranks_kernel(
    by_rank, weights, shared, shared_weights, out, hidden, RANKS: tl.constexpr, HAS_SHARED: tl.constexpr,
    HAS_SHARED_WEIGHTS: tl.constexpr, ALIGNED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: parts of COLUMNS columns of each row."""
    begin_dependent()
    width = hidden // 8 * 8 if ALIGNED else hidden
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_there = column < width
    total = tl.zeros((COLUMNS,), tl.float32)
    for rank in tl.static_range(RANKS):
        weight = tl.broadcast_to(tl.load(weights + row * RANKS + rank), (COLUMNS,))
        value = tl.load(by_rank + (row * RANKS + rank) * width + column, mask=is_there, other=0.0)
        total = tl.fma(weight, value.to(tl.float32), total)
    if HAS_SHARED:
        value = tl.load(shared + row * width + column, mask=is_there, other=0.0).to(tl.float32)
        if HAS_SHARED_WEIGHTS:
            total = tl.fma(tl.broadcast_to(tl.load(shared_weights + row), (COLUMNS,)), value, total)
        else:
            total += value
    tl.store(out + row * width + column, total, mask=is_there)


def combine_ranks(
    by_rank: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor | None,
    shared_weights: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """See `strata.kernels.read_experts.combine_ranks`."""
    rows, ranks, hidden = by_rank.shape
    combine_ranks_kernel[(triton.cdiv(hidden, COLUMNS), rows)](
        by_rank, weights, by_rank if shared is None else shared, weights if shared_weights is None else shared_weights,
        out, hidden, RANKS=ranks, HAS_SHARED=shared is not None, HAS_SHARED_WEIGHTS=shared_weights is not None,
        ALIGNED=hidden % 8 == 0, COLUMNS=COLUMNS, num_warps=4, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
