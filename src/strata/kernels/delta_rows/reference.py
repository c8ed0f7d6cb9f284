"""Rows of a gated delta net as they are defined, in torch, row by row. Knows no block, no stride and no launch."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from strata.kernels.checks import plain_rows
from strata.kernels.delta_rows.arguments import (
    DeltaRowsShape,
    DeltaRowsWork,
    DeltaState,
    DeltaStates,
    DeltaVectors,
    SegmentLengths,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.layout import BLOCK_COLUMNS


@dataclass(frozen=True)
class RuleRow:
    """One row as the rule reads it, a head for every value head; queries and keys of length 1, queries scaled."""

    query: torch.Tensor  # [value_heads, key_dim]
    key: torch.Tensor  # [value_heads, key_dim]
    value: torch.Tensor  # [value_heads, value_dim]
    beta: torch.Tensor  # [value_heads]
    decay: torch.Tensor  # [value_heads]


def delta_rows(
    projected: torch.Tensor,
    rows: WindowRows,
    lengths: SegmentLengths,
    state: DeltaState,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaRowsWork,
    out: RowsOut,
    block_order: torch.Tensor | None,
) -> None:
    """See the package. Needs no work. Raises ValueError where quantized rows are wanted."""
    plain = plain_rows("out", out)
    for segment in rows.used_segments():
        delta = state.delta[segment.slot]
        extended = _extended(projected, state.conv_tail[segment.slot], segment.start, segment.count, shape)
        for step in range(segment.count):
            row = projected[segment.start + step]
            rule = rule_row(extended[step : step + shape.conv_kernel], row, vectors, shape)
            delta = advance(delta, rule)
            output = (delta * rule.query.unsqueeze(-1)).sum(dim=-2)
            finished = finish(output, row, vectors, shape)
            if block_order is not None:
                finished = finished.view(-1, BLOCK_COLUMNS)[block_order.long()].view(-1)
            plain[segment.start + step] = finished
        if segment.count <= lengths.certain:
            state.delta[segment.slot] = delta


def commit_delta(
    states: DeltaStates,
    projected: torch.Tensor,
    rows: WindowRows,
    lengths: SegmentLengths,
    accepted: torch.Tensor,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
) -> None:
    """See the package."""
    accepted_rows = accepted.tolist()
    for index in range(projected.shape[0]):
        state, layer = states.layer(index), vectors.layer(index)
        for segment in rows.used_segments():
            count = accepted_rows[segment.index]
            delta = state.delta[segment.slot]
            extended = _extended(projected[index], state.conv_tail[segment.slot], segment.start, count, shape)
            for step in range(count if segment.count > lengths.certain else 0):
                row = projected[index, segment.start + step]
                delta = advance(delta, rule_row(extended[step : step + shape.conv_kernel], row, layer, shape))
            state.delta[segment.slot] = delta
            state.conv_tail[segment.slot] = extended[count:]


def rule_row(recent: torch.Tensor, row: torch.Tensor, vectors: DeltaVectors, shape: DeltaRowsShape) -> RuleRow:
    """recent [conv_kernel, conv_width]: what the row's convolution reads, itself last; row [projected_width]."""
    summed = recent[0] * vectors.conv[0]
    for tap in range(1, shape.conv_kernel):
        summed = summed + recent[tap] * vectors.conv[tap]
    query, key, value = F.silu(summed).split((shape.key_width, shape.key_width, shape.value_width))
    b, a = row[shape.conv_width + shape.value_width :].split(shape.value_heads)
    softplus = (a + vectors.decay_bias).clamp_min(0.0) + torch.log1p(torch.exp(-(a + vectors.decay_bias).abs()))
    return RuleRow(
        _unit_heads(query, shape) * shape.key_dim**-0.5,
        _unit_heads(key, shape),
        value.view(shape.value_heads, shape.value_dim),
        (1.0 + torch.exp(-b)).reciprocal(),
        torch.exp(vectors.decay_rate * softplus),
    )


def advance(delta: torch.Tensor, row: RuleRow) -> torch.Tensor:
    """The state [value_heads, key_dim, value_dim] after one more row."""
    delta = delta * row.decay[:, None, None]
    key = row.key.unsqueeze(-1)
    correction = (row.value - (delta * key).sum(dim=-2)) * row.beta.unsqueeze(-1)
    return delta + key * correction.unsqueeze(-2)


def _extended(
    projected: torch.Tensor, tail: torch.Tensor, start: int, count: int, shape: DeltaRowsShape
) -> torch.Tensor:
    """[tail_rows + count, conv_width]: the slot's tail, then its first rows of the window."""
    return torch.cat((tail, projected[start : start + count, : shape.conv_width]))


def _unit_heads(x: torch.Tensor, shape: DeltaRowsShape) -> torch.Tensor:
    """[key_width] -> [value_heads, key_dim], each of length 1."""
    heads = x.view(shape.key_heads, shape.key_dim)
    heads = heads * torch.rsqrt((heads * heads).sum(dim=-1, keepdim=True) + 1e-6)
    return heads.repeat_interleave(shape.value_heads // shape.key_heads, dim=0)


def finish(output: torch.Tensor, row: torch.Tensor, vectors: DeltaVectors, shape: DeltaRowsShape) -> torch.Tensor:
    """Norm of every head of output [value_heads, value_dim], times the activated gate -> [value_width]."""
    z = row[shape.conv_width : shape.conv_width + shape.value_width].view_as(output)
    gate = torch.sigmoid(z) if shape.gate_is_sigmoid else F.silu(z)
    inverse = torch.rsqrt((output * output).mean(dim=-1, keepdim=True) + shape.eps)
    return (output * inverse * vectors.norm_scale * gate).flatten()
