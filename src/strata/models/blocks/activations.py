"""Activations of narrow tensors (a few values a row). Knows no family.

torch's own sigmoid and softplus round the last few values of a tensor differently from the rest (vector body, scalar
tail: measured, up to 1 unit in the last place), so with a few values a row the bits would depend on the number of rows.
exp, log1p, add and divide do not (measured over lengths 1..100), so these are made of them.
"""

import torch


def narrow_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)), any shape."""
    return (1.0 + torch.exp(-x)).reciprocal()


def narrow_softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x)) without overflow, any shape."""
    return x.clamp_min(0.0) + torch.log1p(torch.exp(-x.abs()))
