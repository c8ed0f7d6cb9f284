"""A read's experts as they are defined, one after another, on any device. Knows no thread and no launch."""

import torch

from strata.kernels.expert_rows.reference import combine, silu_times
from strata.kernels.expert_rows.reference_window import expert_matrices
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.kernels.read_experts import ReadExperts, ReadWork
from strata.kernels.read_products.reference import multiply
from strata.kernels.router.reference import choose
from strata.quant.packed import PackedMatrix


def route_many(logits: torch.Tensor, normalize: bool, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """See `strata.kernels.read_experts.route_many`."""
    chosen, shares = choose(logits, ids.shape[1], normalize)
    ids.copy_(chosen)
    weights.copy_(shares)


def experts_hidden(experts: ReadExperts, x: torch.Tensor, work: ReadWork, hidden: torch.Tensor) -> None:
    """See `strata.kernels.read_experts.experts_hidden`."""
    ranks = work.order.numel() // x.shape[0]
    for expert, positions in _chosen_positions(experts, work):
        gate, up, _ = _matrices(experts, expert)
        rows = x[work.order[positions].long() // ranks]
        hidden[positions] = silu_times(multiply(gate, rows), multiply(up, rows)).to(hidden.dtype)


def experts_down(experts: ReadExperts, hidden: torch.Tensor, work: ReadWork, by_rank: torch.Tensor) -> None:
    """See `strata.kernels.read_experts.experts_down`."""
    by_place = by_rank.view(-1, by_rank.shape[2])
    for expert, positions in _chosen_positions(experts, work):
        _, _, down = _matrices(experts, expert)
        by_place[work.order[positions].long()] = multiply(down, hidden[positions]).to(by_rank.dtype)


def combine_ranks(
    by_rank: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor | None,
    shared_weights: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """See `strata.kernels.read_experts.combine_ranks`."""
    is_computed = torch.ones_like(weights, dtype=torch.bool)
    rows = None if shared is None else shared.float()
    out.copy_(combine(by_rank.float(), weights, is_computed, rows, shared_weights))


def _chosen_positions(experts: ReadExperts, work: ReadWork) -> list[tuple[int, slice]]:
    """The chosen experts that have places, and their positions in the order."""
    starts = work.starts.tolist()
    return [
        (expert, slice(starts[expert], starts[expert + 1]))
        for expert in experts.chosen.tolist()
        if starts[expert] < starts[expert + 1]
    ]


def _matrices(experts: ReadExperts, expert: int) -> tuple[PackedMatrix, PackedMatrix, PackedMatrix]:
    """Gate, up and down of an expert, in main memory."""
    nowhere = torch.empty(0, dtype=torch.uint8)
    return expert_matrices(ExpertBlobs(experts.layout, nowhere, experts.addresses), expert)
