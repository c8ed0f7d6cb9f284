"""Mixture of experts: router, routed experts, shared expert with its gate. Knows no family and no placement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from strata.models.blocks.activations import narrow_sigmoid
from strata.models.blocks.linear import WINDOW_ROWS, GatedMlpWeights, Weight, gated_mlp, linear

# Called once per call of a layer: (layer index, expert ids [rows, experts per token]).
RoutingObserver = Callable[[int, torch.Tensor], None]


@dataclass(frozen=True)
class MoeShape:
    """How rows are routed."""

    experts: int
    experts_per_token: int
    normalize_weights: bool  # the chosen weights sum to 1 (norm_topk_prob)


class Experts(Protocol):
    """The routed experts of a layer, however they are held."""

    def rows(self, x: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden], ids [rows, ranks] -> each chosen expert's row [rows, ranks, hidden]."""
        ...


@dataclass(frozen=True)
class ExpertTensors:
    """Experts as two tensors. See `Experts`."""

    gate_up: torch.Tensor  # [experts, 2 * width, hidden], gate rows first
    down: torch.Tensor  # [experts, hidden, width]

    def rows(self, x: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        compute = expert_rows if x.shape[0] > WINDOW_ROWS else expert_rows_by_pair
        return compute(x, expert_ids, self)


@dataclass(frozen=True)
class MoeWeights:
    """One layer's router and experts; families without a shared expert leave both shared fields None."""

    router: Weight  # [experts, hidden]
    experts: Experts
    shared: GatedMlpWeights | None = None
    shared_gate: torch.Tensor | None = None  # [1, hidden]; None: the shared expert is added ungated


def route(x: torch.Tensor, router: Weight, shape: MoeShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over all experts, then the best `experts_per_token`, the lower id first among equals.

    x [rows, hidden] -> (expert ids int64, weights), both [rows, experts_per_token], best first.
    """
    shares = torch.softmax(linear(x, router), dim=-1)
    ordered, expert_ids = torch.sort(shares, dim=-1, descending=True, stable=True)
    weights = ordered[:, : shape.experts_per_token]
    if shape.normalize_weights:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return expert_ids[:, : shape.experts_per_token].contiguous(), weights.contiguous()


def expert_rows(x: torch.Tensor, expert_ids: torch.Tensor, experts: ExpertTensors) -> torch.Tensor:
    """expert(x) for every rank. x [rows, hidden], ids [rows, ranks] -> [rows, ranks, hidden].

    An expert computes all of its rows at once. For tiles of a read, whose rows are the same however the text is cut.
    """
    rows, ranks = expert_ids.shape
    order = torch.argsort(expert_ids.view(-1), stable=True)
    gate_up, down = experts.gate_up, experts.down
    counts = torch.bincount(expert_ids.view(-1), minlength=gate_up.shape[0]).tolist()
    gathered = x[order // ranks]  # rows grouped by expert
    computed = torch.empty(rows * ranks, x.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            expert_rows = gathered[start : start + count]
            computed[start : start + count] = gated_mlp(expert_rows, GatedMlpWeights(gate_up[expert], down[expert]))
            start += count
    by_rank = torch.empty_like(computed)
    by_rank[order] = computed
    return by_rank.view(rows, ranks, -1)


def expert_rows_by_pair(x: torch.Tensor, expert_ids: torch.Tensor, experts: ExpertTensors) -> torch.Tensor:
    """The same, every (row, expert) pair by itself: a row's bits do not depend on which other rows chose its experts.

    For windows. Matrix-vector products in place beat gathering the experts' weights into one batched product
    (one row, 8 of 32 experts of 64 x 256: 0.3 ms a layer against 1.0 ms) and products padded to 4 rows (0.9 ms).
    """
    rows, ranks = expert_ids.shape
    chosen = [(place // ranks, expert) for place, expert in enumerate(expert_ids.view(-1).tolist())]
    gate, up = torch.stack([torch.mv(experts.gate_up[expert], x[row]) for row, expert in chosen]).chunk(2, dim=-1)
    inner = F.silu(gate) * up
    computed = torch.stack([torch.mv(experts.down[expert], inner[place]) for place, (_, expert) in enumerate(chosen)])
    return computed.view(rows, ranks, -1)


def combine(by_rank: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None = None) -> torch.Tensor:
    """Sum over ranks of weight * row, then the shared expert's row, which has its gate in it already. The definition to
    the bit is in `kernels/expert_rows/reference`; this twin agrees with it within rounding.

    by_rank [rows, ranks, hidden], weights [rows, ranks], shared [rows, hidden] -> [rows, hidden].
    """
    mixed = torch.bmm(weights.unsqueeze(1), by_rank).squeeze(1)
    return mixed if shared is None else mixed + shared


def moe(
    x: torch.Tensor,
    weights: MoeWeights,
    shape: MoeShape,
    layer: int = 0,
    observer: RoutingObserver | None = None,
) -> torch.Tensor:
    """Routed experts plus the shared expert. x [rows, hidden] -> [rows, hidden]."""
    expert_ids, expert_weights = route(x, weights.router, shape)
    if observer is not None:
        observer(layer, expert_ids)
    by_rank = weights.experts.rows(x, expert_ids)
    if weights.shared is None:
        return combine(by_rank, expert_weights)
    shared = gated_mlp(x, weights.shared)
    if weights.shared_gate is not None:
        # one output value: as a matrix product its bits depend on the number of rows (measured), as a sum they do not
        opening = (x * weights.shared_gate).sum(dim=-1, keepdim=True)
        shared = shared * narrow_sigmoid(opening)
    return combine(by_rank, expert_weights, shared)
