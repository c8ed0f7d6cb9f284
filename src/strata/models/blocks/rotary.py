"""Rotary position embedding on the first `rotary_dim` values of a head (half-split layout). Knows no family.

Angles are formed in float64 whatever the compute dtype, so that they are exact at any position.
"""

from dataclasses import dataclass

import torch


def inverse_frequencies(rotary_dim: int, theta: float) -> torch.Tensor:
    """theta^(-2i / rotary_dim) for i in 0..rotary_dim/2 - 1, float64 [rotary_dim / 2]."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return 1.0 / (theta**exponents)


@dataclass(frozen=True)
class Rotation:
    """The rotation of some rows: cos and sin [rows, 1, rotary_dim / 2], to be applied to any number of heads."""

    cos: torch.Tensor
    sin: torch.Tensor

    def rows(self, index: slice | torch.Tensor) -> "Rotation":
        """The same for a part of the rows."""
        return Rotation(self.cos[index], self.sin[index])


def rotation_at(positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """Rotation of rows at absolute `positions` [rows] int64; `frequencies` as from `inverse_frequencies`."""
    angles = positions.to(torch.float64)[:, None, None] * frequencies
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def apply_rotary(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [rows, heads, head_dim]; values beyond the rotary part pass through."""
    half = rotation.cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned_first = first * rotation.cos - second * rotation.sin
    turned_second = second * rotation.cos + first * rotation.sin
    return torch.cat((turned_first, turned_second, x[..., 2 * half :]), dim=-1)
