"""Muon for matrices, Adam for the rest, each in a few batched calls.

Knows parameters by name and shape; knows no model. Muon: orthogonalised momentum by a quintic Newton-Schulz iteration
(Keller Jordan, 2024), updates scaled to Adam's size by 0.2 * sqrt(longer side) (Liu et al., arXiv 2502.16982).
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

SCALARS = (
    "gate.weight",
    "shared_expert_gate.weight",
    "in_proj_a.weight",
    "in_proj_b.weight",
    "block_inject_weight.weight",
    "embed_tokens.weight",
    "ngram_embedding.weight",
)


def is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim in (2, 3) and "conv1d" not in name and not name.endswith(SCALARS)


def orthogonalised(stack: Tensor) -> Tensor:
    """stack [matrices, m, n] with m <= n -> nearest matrices with equal singular values, in bfloat16 accuracy."""
    x = stack.to(torch.bfloat16)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


class Muon:
    """Matrices of one (m, n) or (n, m) are stacked; expert tensors count as one matrix per expert and half."""

    def __init__(self, named: Iterable[tuple[str, torch.nn.Parameter]], decay: float, momentum: float = 0.95) -> None:
        self.decay, self.momentum = decay, momentum
        groups: dict[tuple[int, int], list[torch.nn.Parameter]] = defaultdict(list)
        for name, parameter in named:
            shape = parameter.shape[-2:]
            if name.endswith("gate_up_proj"):
                shape = torch.Size((shape[0] // 2, shape[1]))
            groups[min(shape), max(shape)].append(parameter)
        self.groups = list(groups.items())
        self.buffers: list[Tensor | None] = [None] * len(self.groups)

    @staticmethod
    def _view(tensor: Tensor, sides: tuple[int, int]) -> Tensor:
        """As [matrices, m, n] with m <= n."""
        rows, columns = tensor.shape[-2:]
        if rows * columns == 2 * sides[0] * sides[1]:
            rows //= 2
        tensor = tensor.reshape(-1, rows, columns)
        return tensor if rows <= columns else tensor.transpose(1, 2)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for index, (sides, parameters) in enumerate(self.groups):
            gradients = torch.cat([self._view(p.grad, sides) for p in parameters if p.grad is not None])
            buffer = self.buffers[index]
            buffer = gradients.clone() if buffer is None else buffer.mul_(self.momentum).add_(gradients)
            self.buffers[index] = buffer
            update = orthogonalised(gradients + self.momentum * buffer).float() * (0.2 * sides[1] ** 0.5)
            torch._foreach_mul_([*parameters], 1 - rate * self.decay)
            at = 0
            for parameter in parameters:
                view = self._view(parameter, sides)
                view.add_(update[at : at + view.shape[0]], alpha=-rate)
                at += view.shape[0]


class Optimizer:
    """Both optimizers behind one step; rates are peak rates, scaled by the caller."""

    def __init__(
        self, model: torch.nn.Module, matrix_rate: float, other_rate: float, table_rate: float, decay: float
    ) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if ".indexer." not in name]
        self.muon = Muon([(n, p) for n, p in named if is_matrix(n, p)], decay)
        self.matrix_rate = matrix_rate
        others = [(n, p) for n, p in named if not is_matrix(n, p)]
        tables = [p for n, p in others if n.endswith("ngram_embedding.weight")]
        kept = [p for n, p in others if not n.endswith("ngram_embedding.weight")]
        self.indexers = [p for n, p in model.named_parameters() if ".indexer." in n]
        fused = kept[0].is_cuda
        self.adam = torch.optim.Adam(
            [
                {"params": kept, "peak": other_rate},
                {"params": tables, "peak": table_rate},
                {"params": self.indexers, "peak": other_rate},
            ],
            lr=other_rate,
            betas=(0.9, 0.95),
            eps=1e-10,
            fused=fused,
        )
        self.all = [p for _, p in model.named_parameters()]

    def step(self, scale: float, indexer_only: bool) -> Tensor:
        """Clips, steps and clears gradients; -> gradient norm before clipping."""
        moving = self.indexers if indexer_only else self.all
        norm = torch.nn.utils.clip_grad_norm_(moving, 1.0, foreach=True)
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * (1.0 if indexer_only else scale)
        if indexer_only:
            for parameter in self.all:
                if all(parameter is not indexer for indexer in self.indexers):
                    parameter.grad = None
        else:
            self.muon.step(self.matrix_rate * scale)
        self.adam.step()
        for parameter in self.all:
            parameter.grad = None
        return norm
