"""Gates over residual streams in torch, on any device: the twin of the kernels, bit for bit. Knows no checks."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from strata.kernels.checks import plain_rows
from strata.kernels.expert_rows.reference import exp, silu_times
from strata.kernels.packed_rows.reference import multiply_into, packed_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.stream_gates.low_out import LowOut
from strata.quant.packed import PackedMatrix


def gates_down(down: Sequence[PackedMatrix], normed: RowsOut, streams_count: int, out: LowOut) -> None:
    """The definition of `strata.kernels.stream_gates.gates_down`."""
    multiply_into(down, normed, out.shares)
    scaled = out.shares / torch.full_like(out.shares, float(streams_count))
    low = plain_rows("low", out.low)
    low.copy_(silu_times(scaled[:, : low.shape[1]], torch.ones_like(low)))
    if out.strengths is not None:
        out.strengths.copy_(2.0 * sigmoid(scaled[:, low.shape[1] :]))


def stream_gates(low: RowsOut, normed: torch.Tensor, up: PackedMatrix, streams_count: int, mixed: RowsOut) -> None:
    """The definition of `strata.kernels.stream_gates.stream_gates`."""
    assert low.plain is not None  # checked by the caller
    gated = sigmoid(packed_rows(up, low.plain)) * normed
    total = add_streams(gated.unflatten(1, (streams_count, -1)))
    plain_rows("mixed", mixed).copy_(total / torch.full_like(total, float(streams_count)))


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)) of float32, by the exp that every path shares."""
    one = torch.ones_like(x)
    return one / (one + exp(-x))


def add_streams(values: torch.Tensor) -> torch.Tensor:
    """[rows, streams, hidden] -> [rows, hidden]: stream s plus stream s + half until one is left, zeros filling up."""
    count = 1 << (values.shape[1] - 1).bit_length()
    values = F.pad(values, (0, 0, 0, count - values.shape[1]))
    while values.shape[1] > 1:
        half = values.shape[1] // 2
        values = values[:, :half] + values[:, half:]
    return values[:, 0]
