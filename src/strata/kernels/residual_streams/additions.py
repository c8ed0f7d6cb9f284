"""What one layer leaves to be added to the residual streams before the next one reads them. Knows no kernel."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Nothing:
    """The streams stay as they are: nothing was computed since they were written."""


@dataclass(frozen=True)
class MixerRows:
    """The output of a mixer or of a dense MLP, added to every stream with its own strength."""

    output: torch.Tensor  # float32 [rows, hidden]
    strengths: torch.Tensor | None  # float32 [rows, streams]; None: added as it is, to the one stream there is


@dataclass(frozen=True)
class ExpertRows:
    """Rows of experts before they are combined (as `expert_rows.reference.combine` does), then added likewise."""

    by_rank: torch.Tensor  # float32 [rows, ranks, hidden]
    weights: torch.Tensor  # float32 [rows, ranks]: the router's
    shared: torch.Tensor | None  # float32 [rows, hidden]: the shared expert, as one rank more
    shared_weights: torch.Tensor | None  # float32 [rows]: its gate; None: 1
    strengths: torch.Tensor | None  # as in MixerRows


@dataclass(frozen=True)
class Values:
    """Values of every stream's own, added as they are."""

    values: torch.Tensor  # float32 [rows, streams * hidden]


Addition = Nothing | MixerRows | ExpertRows | Values
