"""The join of streams and next token, written out step by step."""

import torch

from strata.models.blocks.mtp_head import MtpJoinWeights, join_streams


def normed(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    return x / ((x * x).mean() + eps).sqrt() * scale


def test_one_norm_spans_all_streams_and_the_embedding_joins_each() -> None:
    hidden, streams, eps = 5, 3, 1e-6
    weights = MtpJoinWeights(
        *(torch.randn(n, dtype=torch.float64) for n in (hidden, streams * hidden)),
        *(torch.randn(hidden, hidden, dtype=torch.float64) for _ in range(2)),
        eps,
    )
    rows, embedding = torch.randn(4, streams * hidden).double(), torch.randn(4, hidden).double()
    found = join_streams(rows, embedding, weights)
    for row in range(4):
        mapped = weights.embedding_map @ normed(embedding[row], weights.embedding_scale, eps)
        wide = normed(rows[row], weights.hidden_scale, eps)
        for stream in range(streams):
            part = slice(stream * hidden, (stream + 1) * hidden)
            assert (found[row, part] - (weights.hidden_map @ wide[part] + mapped)).abs().max() < 1e-12
