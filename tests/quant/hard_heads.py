"""Heads that are hard to store: what every code of cells is tried on."""

import torch


def hard_heads(head_dim: int, count: int = 8, seed: int = 0) -> torch.Tensor:
    """float32 [count, head_dim]: common, tiny, tinier than scales, huge, zeros, an outlier, halves of a step."""
    made = torch.randn(count, head_dim, generator=torch.Generator().manual_seed(seed))
    made[1] *= 1e-5
    made[2] *= 1e-9
    made[3] *= 1e30
    made[4] = 0
    made[5, 3] = 3e4
    made[6] = torch.arange(head_dim) % 255 - 127.0
    made[7] = (torch.arange(head_dim) % 15 - 7) / 2
    return made
