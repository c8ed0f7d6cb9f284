"""What a multi-token-prediction layer reads: the model's streams at i joined with the embedding of token i + 1.

Knows the maths of the join; the layer behind it and its state are the family's.
"""

from dataclasses import dataclass

import torch

from strata.models.blocks.linear import Weight, linear
from strata.models.blocks.norm import rms_norm


@dataclass(frozen=True)
class MtpJoinWeights:
    """Norms and maps of the join; scales as they multiply (1 + weight where the family says so)."""

    embedding_scale: torch.Tensor  # [hidden]
    hidden_scale: torch.Tensor  # [streams * hidden]
    embedding_map: Weight  # [hidden, hidden]
    hidden_map: Weight  # [hidden, hidden], the same for every stream
    eps: float


def join_streams(streams: torch.Tensor, embedding: torch.Tensor, weights: MtpJoinWeights) -> torch.Tensor:
    """Streams of the layer's input.

    streams [rows, streams * hidden] at positions i (before the final mixer), embedding [rows, hidden] of tokens i + 1.
    One norm spans all streams; the mapped embedding is added to each of them. Returns [rows, streams * hidden].
    """
    rows, hidden = embedding.shape
    mapped_embedding = linear(rms_norm(embedding, weights.embedding_scale, weights.eps), weights.embedding_map)
    normed = rms_norm(streams, weights.hidden_scale, weights.eps)
    mapped = linear(normed.view(-1, hidden), weights.hidden_map).view(rows, -1, hidden)
    return (mapped + mapped_embedding.unsqueeze(1)).flatten(1)
