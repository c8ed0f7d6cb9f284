"""The steps between a prompt's products in torch, on any device: within rounding what the kernels do. No checks."""

import torch
import torch.nn.functional as F

from strata.kernels.read_streams import ReadAddition
from strata.kernels.residual_streams.additions import Nothing
from strata.kernels.residual_streams.reference import added_rows


def add_norm(
    streams: torch.Tensor,
    addition: ReadAddition,
    norm_scale: torch.Tensor,
    eps: float,
    streams_count: int,
    out: torch.Tensor,
) -> None:
    """See the package."""
    by_stream = streams.unflatten(1, (streams_count, -1))
    if not isinstance(addition, Nothing):
        by_stream += added_rows(addition, by_stream)
    mean_square = by_stream.square().mean(dim=2, keepdim=True)
    out.copy_((by_stream / (mean_square + eps).sqrt()).flatten(1) * norm_scale)


def low_gates(shares: torch.Tensor, streams_count: int, low: torch.Tensor, strengths: torch.Tensor | None) -> None:
    """See the package."""
    scaled = shares / streams_count
    low.copy_(F.silu(scaled[:, : low.shape[1]]))
    if strengths is not None:
        strengths.copy_(2.0 * torch.sigmoid(scaled[:, low.shape[1] :]))


def mix_streams(gates: torch.Tensor, normed: torch.Tensor, streams_count: int, mixed: torch.Tensor) -> None:
    """See the package."""
    gated = (torch.sigmoid(gates.float()) * normed.float()).unflatten(1, (streams_count, -1))
    total = gated[:, 0]
    for stream in range(1, streams_count):
        total = total + gated[:, stream]
    mixed.copy_(total / streams_count)


def gated_hidden(gate_up: torch.Tensor, hidden: torch.Tensor) -> None:
    """See the package."""
    gate, up = gate_up.chunk(2, dim=1)
    hidden.copy_(F.silu(gate) * up)


def gate_shares(x: torch.Tensor, gate: torch.Tensor, shares: torch.Tensor) -> None:
    """See the package."""
    shares.copy_(torch.sigmoid((x.float() * gate).sum(dim=1)))
