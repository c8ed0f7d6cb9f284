"""Root-mean-square norms over plain tensors. Knows no family.

`scale` is what the normed value is multiplied by: families that publish `1 + weight` norms add the 1 once at load.
"""

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., width] / sqrt(mean(x^2) + eps) * scale [width]."""
    return F.rms_norm(x, scale.shape, scale, eps)


def grouped_rms_norm(x: torch.Tensor, scale: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """Each of `groups` equal parts of the last axis has its own mean square. x [rows, width], scale [width]."""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    normed = F.rms_norm(parts, parts.shape[-1:], None, eps)
    return normed.reshape(x.shape) * scale


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, scale: torch.Tensor, eps: float, gate_activation: str = "silu"
) -> torch.Tensor:
    """Norm of x [..., width], then times the activated gate [..., width]; `gate_activation` is silu or sigmoid."""
    activated = F.silu(gate) if gate_activation == "silu" else torch.sigmoid(gate)
    return rms_norm(x, scale, eps) * activated
