"""Residual streams with low-rank gates (hyper-connections). Knows no family.

A row holds `streams` residual streams of `hidden` values side by side. Reading mixes them into one layer input;
writing adds the layer's output to every stream, each with its own strength.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from strata.models.blocks.activations import narrow_sigmoid
from strata.models.blocks.linear import Weight, linear
from strata.models.blocks.norm import grouped_rms_norm


@dataclass(frozen=True)
class ResidualWeights:
    """One residual gate; `down` holds the low-rank map and below it the strengths of the write (if there is one)."""

    norm_scale: torch.Tensor  # [streams * hidden]
    down: Weight  # [low_rank (+ streams), streams * hidden]
    up: Weight  # [streams * hidden, low_rank]
    streams: int
    eps: float


def read_streams(streams: torch.Tensor, weights: ResidualWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix the streams into a layer's input.

    streams [rows, streams * hidden] -> (input [rows, hidden], strengths [rows, streams] of the write that follows;
    the final mixer has none: [rows, 0]).
    """
    normed = grouped_rms_norm(streams, weights.norm_scale, weights.streams, weights.eps)
    low_rank = weights.up.shape[1]
    # the published maps are of the streams' mean, not of their sum
    shares = linear(normed, weights.down) / weights.streams
    low, inject = shares.split((low_rank, weights.down.shape[0] - low_rank), dim=-1)
    gates = torch.sigmoid(linear(F.silu(low), weights.up))
    mixed = (gates * normed).unflatten(-1, (weights.streams, -1)).mean(dim=-2)
    return mixed, 2.0 * narrow_sigmoid(inject)


def write_streams(streams: torch.Tensor, output: torch.Tensor, strengths: torch.Tensor) -> torch.Tensor:
    """streams [rows, streams * hidden] plus output [rows, hidden] times strengths [rows, streams], as a new tensor."""
    return streams + (strengths.unsqueeze(-1) * output.unsqueeze(-2)).flatten(-2)
