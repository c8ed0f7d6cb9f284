"""The gated delta net of a read as it is defined, in torch: one chunk of the grid after the other, in float32.

Every chunk has the same sizes, whatever the read's. Knows no launch and rounds nothing but what it gives out.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from strata.kernels.delta_read.arguments import CHUNK, DeltaReadWork
from strata.kernels.delta_rows.arguments import DeltaRowsShape, DeltaState, DeltaVectors
from strata.quant.layout import BLOCK_COLUMNS


@dataclass(frozen=True)
class ChunkRows:
    """A chunk as the rule reads it, a head for every value head; rows outside the read are 0 everywhere."""

    query: torch.Tensor  # [value_heads, CHUNK, key_dim]: of length key_dim ** -0.5
    key: torch.Tensor  # [value_heads, CHUNK, key_dim]: of length 1
    value: torch.Tensor  # [value_heads, CHUNK, value_dim]
    beta: torch.Tensor  # [value_heads, CHUNK]
    log_decay: torch.Tensor  # [value_heads, CHUNK]


def delta_read(
    projected: torch.Tensor,
    position: int,
    slot: int,
    state: DeltaState,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaReadWork,
    out: torch.Tensor,
    block_order: torch.Tensor | None,
) -> None:
    """See the package. Needs no work."""
    count, first = projected.shape[0], -(position % CHUNK)
    for start in range(first, count, CHUNK):
        begin, end = max(start, 0), min(start + CHUNK, count)
        rows = projected[begin:end].float()
        extended = torch.cat((state.conv_tail[slot], rows[:, : shape.conv_width]))
        state.conv_tail[slot] = extended[end - begin :]
        chunk = _chunk_rows(extended, rows, begin - start, vectors, shape)
        recalled, state.delta[slot] = advance_chunk(chunk, state.delta[slot])
        finished = _finish(recalled[begin - start : end - start], rows, vectors, shape)
        if block_order is not None:
            finished = finished.view(end - begin, -1, BLOCK_COLUMNS)[:, block_order.long()].flatten(1)
        out[begin:end] = finished.to(out.dtype)


def advance_chunk(rows: ChunkRows, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the queries recall [CHUNK, value_heads, value_dim], and the state [value_heads, key_dim, value_dim] after.

    Row i writes key_i (x) written_i; written_i = beta_i (value_i - what key_i finds in the decayed state before it),
    a system of equations that is triangular because a row finds what earlier rows wrote.
    """
    since = rows.log_decay.double().cumsum(dim=-1)  # differences of neighbours must not lose the small decays
    is_later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=state.device).triu(1)
    between = (since.unsqueeze(-1) - since.unsqueeze(-2)).masked_fill(is_later, float("-inf")).exp().float()
    from_start = since.exp().float().unsqueeze(-1)
    to_end = (since[:, -1:] - since).exp().float().unsqueeze(-1)
    beta = rows.beta.unsqueeze(-1)
    system = torch.matmul(rows.key * beta, rows.key.mT) * between  # the solver takes its diagonal as 1
    wanted = (rows.value - torch.matmul(rows.key, state) * from_start) * beta
    written = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    scores = torch.matmul(rows.query, rows.key.mT) * between
    recalled = torch.matmul(rows.query, state) * from_start + torch.matmul(scores, written)
    after = state * from_start[:, -1:] + torch.matmul(rows.key.mT, written * to_end)
    return recalled.transpose(0, 1), after


def _chunk_rows(
    extended: torch.Tensor, rows: torch.Tensor, before: int, vectors: DeltaVectors, shape: DeltaRowsShape
) -> ChunkRows:
    """extended [tail_rows + rows, conv_width], rows [rows, projected_width], `before` rows of the chunk in front."""
    count = rows.shape[0]
    whole = torch.zeros(CHUNK + shape.tail_rows, shape.conv_width, device=rows.device)
    whole[before : before + extended.shape[0]] = extended
    summed = whole[:CHUNK] * vectors.conv[0]
    for tap in range(1, shape.conv_kernel):
        summed = summed + whole[tap : tap + CHUNK] * vectors.conv[tap]
    is_row = torch.zeros(CHUNK, 1, device=rows.device)
    is_row[before : before + count] = 1.0
    query, key, value = (F.silu(summed) * is_row).split((shape.key_width, shape.key_width, shape.value_width), dim=1)
    gates = torch.zeros(CHUNK, 2 * shape.value_heads, device=rows.device)
    gates[before : before + count] = rows[:, shape.conv_width + shape.value_width :]
    b, a = gates.split(shape.value_heads, dim=1)
    log_decay = vectors.decay_rate * F.softplus(a + vectors.decay_bias)
    return ChunkRows(
        _unit_heads(query, shape) * shape.key_dim**-0.5,
        _unit_heads(key, shape),
        value.unflatten(1, (shape.value_heads, shape.value_dim)).transpose(0, 1),
        (torch.sigmoid(b) * is_row).t(),
        (log_decay * is_row).t(),
    )


def _unit_heads(x: torch.Tensor, shape: DeltaRowsShape) -> torch.Tensor:
    """[CHUNK, key_width] -> [value_heads, CHUNK, key_dim], each of length 1; rows of zeros stay."""
    heads = x.unflatten(1, (shape.key_heads, shape.key_dim)).transpose(0, 1)
    heads = heads * torch.rsqrt((heads * heads).sum(dim=-1, keepdim=True) + 1e-6)
    return heads.repeat_interleave(shape.value_heads // shape.key_heads, dim=0)


def _finish(recalled: torch.Tensor, rows: torch.Tensor, vectors: DeltaVectors, shape: DeltaRowsShape) -> torch.Tensor:
    """Norm of every head of recalled [rows, value_heads, value_dim], times its gate, activated: [rows, value_width]."""
    z = rows[:, shape.conv_width : shape.conv_width + shape.value_width].view_as(recalled)
    gate = torch.sigmoid(z) if shape.gate_is_sigmoid else F.silu(z)
    inverse = torch.rsqrt((recalled * recalled).mean(dim=-1, keepdim=True) + shape.eps)
    return (recalled * inverse * vectors.norm_scale * gate).flatten(1)
