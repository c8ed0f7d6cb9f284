"""Adding to residual streams and their norms in torch, on any device: the twin of triton.py. Knows no checks."""

import torch

from strata.kernels.checks import plain_rows
from strata.kernels.expert_rows.reference import combine
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.residual_streams.additions import Addition, ExpertRows, MixerRows, Nothing, Values


def add_and_norm(
    streams: torch.Tensor, addition: Addition, norm_scale: torch.Tensor, eps: float, streams_count: int, out: RowsOut
) -> None:
    """The sums have the bits of triton.py; the norms differ from it by the order in which squares are added."""
    by_stream = streams.unflatten(1, (streams_count, -1))
    if not isinstance(addition, Nothing):
        by_stream += added_rows(addition, by_stream)
    mean_square = by_stream.square().mean(dim=2, keepdim=True)
    normed = by_stream / (mean_square + eps).sqrt()
    plain_rows("out", out).copy_(normed.flatten(1) * norm_scale)


def added_rows(addition: MixerRows | ExpertRows | Values, by_stream: torch.Tensor) -> torch.Tensor:
    """What is added to the streams [rows, streams, hidden], in a shape that broadcasts to theirs."""
    if isinstance(addition, Values):
        return addition.values.view_as(by_stream)
    rows = combined_rows(addition) if isinstance(addition, ExpertRows) else addition.output
    if addition.strengths is None:
        return rows[:, None]
    return addition.strengths[..., None] * rows[:, None]


def combined_rows(experts: ExpertRows) -> torch.Tensor:
    """Rows of experts as one: float32 [rows, hidden]."""
    everything = torch.ones_like(experts.weights, dtype=torch.bool)
    return combine(experts.by_rank, experts.weights, everything, experts.shared, experts.shared_weights)
