"""Gates over residual streams in torch, on any device: the twin of triton.py, bit for bit. Knows no checks."""

import torch
import torch.nn.functional as F

from strata.kernels.checks import plain_rows
from strata.kernels.expert_rows.reference import exp, matrix_rows, silu_times
from strata.kernels.stream_gates.gates_out import GatesOut
from strata.quant.layout import Array
from strata.quant.packed import PackedMatrix


def stream_gates(
    shares: torch.Tensor, normed: torch.Tensor, up: PackedMatrix, streams_count: int, out: GatesOut
) -> None:
    """The definition of `strata.kernels.stream_gates`."""
    low_rank = up.layout.columns
    scaled = shares / torch.full_like(shares, float(streams_count))
    low = plain_rows("low", out.low)
    low.copy_(silu_times(scaled[:, :low_rank], torch.ones_like(low)))
    gated = sigmoid(product(up, low)) * normed
    total = add_streams(gated.unflatten(1, (streams_count, -1)))
    plain_rows("mixed", out.mixed).copy_(total / torch.full_like(total, float(streams_count)))
    if out.strengths is not None:
        out.strengths.copy_(2.0 * sigmoid(scaled[:, low_rank:]))


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)) of float32, by the exp that every path shares."""
    one = torch.ones_like(x)
    return one / (one + exp(-x))


def product(up: PackedMatrix, low: torch.Tensor) -> torch.Tensor:
    """up times each row of low, by the definition, which computes in main memory."""
    codes, scales, super_scales, mins, super_mins = (up.array(array).cpu() for array in Array)
    host = PackedMatrix(up.layout, codes, scales, super_scales, mins, super_mins, up.post_scale)
    return matrix_rows(host, low.cpu()).to(low.device)


def add_streams(values: torch.Tensor) -> torch.Tensor:
    """[rows, streams, hidden] -> [rows, hidden]: stream s plus stream s + half until one is left, zeros filling up."""
    count = 1 << (values.shape[1] - 1).bit_length()
    values = F.pad(values, (0, 0, 0, count - values.shape[1]))
    while values.shape[1] > 1:
        half = values.shape[1] // 2
        values = values[:, :half] + values[:, half:]
    return values[:, 0]
