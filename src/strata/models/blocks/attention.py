"""Causal grouped-query attention over a slot's key and value cells. Knows no family and no storage of cells.

Keys are split at absolute multiples of 512 and the splits are merged in order, so memory is bounded and a row's bits
depend neither on how many rows share the call nor on cells after its own position (they are masked, never NaN:
cell buffers start as zeros and their length is a multiple of 512).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from strata.models.blocks.linear import Weight, linear
from strata.models.blocks.norm import rms_norm
from strata.models.blocks.rotary import Rotation, apply_rotary
from strata.models.blocks.rows import pad_rows
from strata.quant.cell_codes import CellKind

KEY_SPLIT = 512
MASKED_SCORE = -1e30  # finite: a split in which a row sees nothing must not make NaN; it is wiped when splits merge


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention layer."""

    query_heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-6
    has_output_gate: bool = False  # q_proj gives [query, gate] per head; the gate multiplies the attention's output
    cells: CellKind = CellKind.F32  # how a slot keeps keys and values; no file says it, see `models.cell_kind`


@dataclass(frozen=True)
class AttentionWeights:
    """`qkv` is q_proj (rows per head: query, then gate if there is one), k_proj and v_proj on top of each other."""

    qkv: Weight  # [query_heads * head_dim * (2 if gated) + 2 * kv_heads * head_dim, hidden]
    out: Weight  # [hidden, query_heads * head_dim]
    query_scale: torch.Tensor | None = None  # [head_dim]: what the normed query is multiplied by; None: no norm
    key_scale: torch.Tensor | None = None


@dataclass(frozen=True)
class ProjectedRows:
    """Rows ready for attention, queries and keys normed and rotated."""

    query: torch.Tensor  # [rows, query_heads, head_dim]
    key: torch.Tensor  # [rows, kv_heads, head_dim]
    value: torch.Tensor  # [rows, kv_heads, head_dim]
    gate: torch.Tensor | None  # [rows, query_heads * head_dim], before the sigmoid


class Heads(Protocol):
    """Keys or values [cells, kv_heads, head_dim]: a tensor, or cells that are decoded where they are read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, place: Any) -> torch.Tensor: ...


def project_rows(
    x: torch.Tensor, weights: AttentionWeights, shape: AttentionShape, rotation: Rotation
) -> ProjectedRows:
    """x [rows, hidden] -> queries, keys, values and gate."""
    rows = x.shape[0]
    kv_width = shape.kv_heads * shape.head_dim
    mixed = linear(x, weights.qkv)
    packed_query, key, value = mixed.split((mixed.shape[1] - 2 * kv_width, kv_width, kv_width), dim=-1)
    query = packed_query.view(rows, shape.query_heads, -1)
    gate = None
    if shape.has_output_gate:
        query, head_gate = query.chunk(2, dim=-1)
        gate = head_gate.reshape(rows, -1)
    key = key.view(rows, shape.kv_heads, shape.head_dim)
    if weights.query_scale is not None:
        query = rms_norm(query, weights.query_scale, shape.eps)
    if weights.key_scale is not None:
        key = rms_norm(key, weights.key_scale, shape.eps)
    value = value.reshape(rows, shape.kv_heads, shape.head_dim)
    return ProjectedRows(apply_rotary(query, rotation), apply_rotary(key, rotation), value, gate)


def attend_causal(
    query: torch.Tensor, keys: Heads, values: Heads, positions: torch.Tensor, visible_cells: int
) -> torch.Tensor:
    """Attention of rows at absolute `positions` [rows] over the cells 0..own position of one slot.

    query [rows, query_heads, head_dim]; keys, values [cells, kv_heads, head_dim] with cells a multiple of 512 and at
    least `visible_cells` = the last row's position + 1. Returns [rows, query_heads * head_dim].
    """
    rows, query_heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    query = pad_rows(query)
    padded_rows = query.shape[0]
    group = query_heads // kv_heads
    # [kv_heads, rows * group, head_dim]: the queries that share a key head are rows of one matrix product
    grouped = (query * head_dim**-0.5).view(padded_rows, kv_heads, group, head_dim).transpose(0, 1)
    grouped = grouped.reshape(kv_heads, padded_rows * group, head_dim)
    if padded_rows > rows:
        positions = torch.cat((positions, positions.new_zeros(padded_rows - rows)))
    row_positions = positions.repeat_interleave(group)[:, None]
    peak = query.new_full((kv_heads, padded_rows * group, 1), MASKED_SCORE)
    total = torch.zeros_like(peak)
    mixed = torch.zeros_like(grouped)
    for start in range(0, visible_cells, KEY_SPLIT):
        stop = start + KEY_SPLIT
        scores = torch.matmul(grouped, keys[start:stop].to(query.dtype).permute(1, 2, 0))
        cells = torch.arange(start, stop, device=query.device)
        scores = scores.masked_fill(cells > row_positions, MASKED_SCORE)
        new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        shares = torch.exp(scores - new_peak)
        fade = torch.exp(peak - new_peak)
        total = total * fade + shares.sum(dim=-1, keepdim=True)
        mixed = mixed * fade + torch.matmul(shares, values[start:stop].to(query.dtype).transpose(0, 1))
        peak = new_peak
    mixed = (mixed / total).view(kv_heads, padded_rows, group, head_dim).transpose(0, 1)
    return mixed.reshape(padded_rows, query_heads * head_dim)[:rows]


def finish_rows(attended: torch.Tensor, gate: torch.Tensor | None, weights: AttentionWeights) -> torch.Tensor:
    """Output gate and output projection: [rows, query_heads * head_dim] -> [rows, hidden]."""
    if gate is not None:
        attended = attended * torch.sigmoid(gate)
    return linear(attended, weights.out)
