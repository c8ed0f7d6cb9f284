"""Routing as it is defined, in torch. Knows no expert's bytes."""

import torch

from strata.kernels.expert_rows.reference import exp
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.router import Routes, SharedGate
from strata.kernels.window_rows import WindowRows


def route_rows(
    logits: torch.Tensor, rows: WindowRows, normalize: bool, routes: Routes, shared: SharedGate | None
) -> None:
    """See `strata.kernels.router.route_rows`; any device."""
    is_used = (rows.slots >= 0)[:, None]
    ids, weights = choose(logits, routes.ids.shape[1], normalize)
    routes.ids.copy_(torch.where(is_used, ids, -1))
    routes.weights.copy_(torch.where(is_used, weights, 0.0))
    list_work(routes.ids, routes.work)
    if shared is not None:
        assert routes.shared_weights is not None  # checked by the caller
        opening = (shared.x * shared.gate).sum(dim=-1)
        routes.shared_weights.copy_(1.0 / (1.0 + exp(-opening)))


def choose(logits: torch.Tensor, ranks: int, normalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """logits float32 [rows, experts] -> the best ids int32 and their weights float32, [rows, ranks]."""
    best, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    shares = exp(logits - best[:, :1])
    weights = shares.gather(1, ids[:, :ranks]) / shares.sum(dim=-1, keepdim=True)
    if normalize:
        total = torch.zeros_like(weights[:, :1])
        for rank in range(ranks):
            total = total + weights[:, rank : rank + 1]
        weights = weights / total
    return ids[:, :ranks].int(), weights


def list_work(ids: torch.Tensor, work: ExpertWork) -> None:
    """ids [rows, ranks], -1 for unused -> the work: sorted by id, then place; unused places at the end, in no entry.

    The entry of an expert is the position of its first place; the entries of its other places are empty.
    """
    flat = torch.where(ids < 0, torch.iinfo(torch.int32).max, ids).reshape(-1)
    order = torch.argsort(flat, stable=True)
    sorted_ids = flat[order].contiguous()
    position = torch.arange(flat.numel(), device=ids.device)
    first = torch.searchsorted(sorted_ids, sorted_ids, right=False)
    end = torch.searchsorted(sorted_ids, sorted_ids, right=True)
    used = (ids >= 0).sum()
    work.seats.copy_(torch.where(position < used, sorted_ids, 0))
    work.starts[:-1].copy_(torch.where(position == first, position, end).clamp(max=used))
    work.starts[-1:].copy_(used[None])
    work.places.copy_(order)
    work.rows.copy_(order // work.ranks)
