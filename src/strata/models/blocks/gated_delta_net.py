"""Gated delta net: short convolution, gated delta rule, gated norm. Knows no family.

A read runs the rule in chunks (one tile of at most 64 rows on the absolute grid = one chunk); a window runs it row by
row, exactly as one-by-one decoding does. The state [value_heads, key_dim, value_dim] is float32 or the compute dtype
if that is wider.
"""

from dataclasses import dataclass

import torch

from strata.models.blocks.activations import narrow_sigmoid, narrow_softplus
from strata.models.blocks.linear import Weight, linear
from strata.models.blocks.norm import gated_rms_norm


@dataclass(frozen=True)
class DeltaNetShape:
    """Sizes of one delta-net layer; value head h uses key head h // (value_heads // key_heads)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    eps: float = 1e-6
    gate_activation: str = "silu"  # silu or sigmoid

    @property
    def conv_width(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class DeltaNetWeights:
    """`in_all` is in_proj_qkv, in_proj_z, in_proj_b and in_proj_a on top of each other (q, k, v rows in that order)."""

    in_all: Weight  # [conv_width + value_width + 2 * value_heads, hidden]
    conv: torch.Tensor  # [conv_kernel, conv_width]: tap-major; the last tap meets the row itself
    decay_rate: torch.Tensor  # [value_heads]: -exp(A_log)
    decay_bias: torch.Tensor  # [value_heads]: dt_bias
    norm_scale: torch.Tensor  # [value_dim]
    out: Weight  # [hidden, value_width]


@dataclass(frozen=True)
class DeltaNetRows:
    """What the input projection gives: everything that a commit needs to replay rows."""

    mixed: torch.Tensor  # [rows, conv_width], before the convolution
    z: torch.Tensor  # [rows, value_heads, value_dim], the output gate before its activation
    beta: torch.Tensor  # [rows, value_heads]
    log_decay: torch.Tensor  # [rows, value_heads], <= 0


@dataclass(frozen=True)
class DeltaRuleRows:
    """Inputs of the delta rule, one head per value head, queries scaled, queries and keys of length 1."""

    query: torch.Tensor  # [..., value_heads, key_dim]
    key: torch.Tensor  # [..., value_heads, key_dim]
    value: torch.Tensor  # [..., value_heads, value_dim]
    beta: torch.Tensor  # [..., value_heads]
    log_decay: torch.Tensor  # [..., value_heads]

    def part(self, slots: slice, steps: slice) -> "DeltaRuleRows":
        """Some slots' rows of some steps, of tensors [slots, steps, ...]."""
        fields = (self.query, self.key, self.value, self.beta, self.log_decay)
        return DeltaRuleRows(*(field[slots, steps] for field in fields))


def project_rows(x: torch.Tensor, weights: DeltaNetWeights, shape: DeltaNetShape) -> DeltaNetRows:
    """x [rows, hidden] -> the rows' projections."""
    widths = (shape.conv_width, shape.value_width, shape.value_heads, shape.value_heads)
    mixed, z, b, a = linear(x, weights.in_all).split(widths, dim=-1)
    log_decay = weights.decay_rate * narrow_softplus(a + weights.decay_bias)
    z = z.reshape(-1, shape.value_heads, shape.value_dim)
    return DeltaNetRows(mixed, z, narrow_sigmoid(b), log_decay)


def delta_rule_inputs(
    convolved: torch.Tensor, beta: torch.Tensor, log_decay: torch.Tensor, shape: DeltaNetShape
) -> DeltaRuleRows:
    """Split the convolved rows [..., conv_width] into heads; unit-length queries and keys, repeated per value head."""
    key_width = shape.key_heads * shape.key_dim
    query_key, value = convolved.split((2 * key_width, shape.value_width), dim=-1)
    query_key = query_key.unflatten(-1, (2, shape.key_heads, shape.key_dim))
    query_key = query_key * torch.rsqrt((query_key * query_key).sum(dim=-1, keepdim=True) + 1e-6)
    repeats = shape.value_heads // shape.key_heads
    if repeats > 1:
        query_key = query_key.repeat_interleave(repeats, dim=-2)
    query, key = query_key.unbind(dim=-3)
    value = value.unflatten(-1, (shape.value_heads, shape.value_dim))
    return DeltaRuleRows(query * shape.key_dim**-0.5, key, value, beta, log_decay)


def delta_rule_chunk(rows: DeltaRuleRows, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule for one chunk of rows at once.

    Rows' tensors [rows, value_heads, ...], state [value_heads, key_dim, value_dim].
    Returns (outputs [rows, value_heads, value_dim], the state after the last row).
    """
    query, key, value = (t.transpose(0, 1) for t in (rows.query, rows.key, rows.value))  # [heads, rows, dim]
    beta = rows.beta.t().unsqueeze(-1)
    decay_sum = rows.log_decay.t().cumsum(dim=-1)  # [heads, rows]: log of the decay since the chunk's start
    count = key.shape[1]
    is_later = torch.ones(count, count, dtype=torch.bool, device=key.device).triu(1)
    # decay between row j and row i >= j; later rows are masked before exp, where they would overflow
    between = (decay_sum.unsqueeze(-1) - decay_sum.unsqueeze(-2)).masked_fill(is_later, float("-inf")).exp()
    since_start = decay_sum.exp().unsqueeze(-1)
    key_beta = key * beta
    system = torch.matmul(key_beta, key.transpose(-1, -2)) * between  # its diagonal is taken as 1 by the solver
    wanted = value * beta - torch.matmul(key_beta * since_start, state)
    written = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    within = torch.matmul(query, key.transpose(-1, -2)) * between
    output = torch.matmul(query * since_start, state) + torch.matmul(within, written)
    to_end = (decay_sum[:, -1:] - decay_sum).exp().unsqueeze(-1)
    new_state = state * since_start[:, -1:] + torch.matmul((key * to_end).transpose(-1, -2), written)
    return output.transpose(0, 1), new_state


def delta_rule_steps(rows: DeltaRuleRows, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule row by row, for several slots side by side.

    Rows' tensors [slots, steps, value_heads, ...], state [slots, value_heads, key_dim, value_dim]. A padded row
    (key, value, beta and log-decay 0) leaves its slot's state as it is.
    Returns (outputs [slots, steps, value_heads, value_dim], the states after the last step).
    """
    decay = rows.log_decay.exp()[..., None, None]
    key = rows.key.unsqueeze(-1)
    query = rows.query.unsqueeze(-1)
    outputs = []
    for step in range(rows.key.shape[1]):
        state = state * decay[:, step]
        remembered = (state * key[:, step]).sum(dim=-2)
        correction = (rows.value[:, step] - remembered) * rows.beta[:, step, :, None]
        state = state + key[:, step] * correction.unsqueeze(-2)
        outputs.append((state * query[:, step]).sum(dim=-2))
    return torch.stack(outputs, dim=1), state


def finish_rows(output: torch.Tensor, z: torch.Tensor, weights: DeltaNetWeights, shape: DeltaNetShape) -> torch.Tensor:
    """Gated norm per head and output projection: output, z [rows, value_heads, value_dim] -> [rows, hidden]."""
    normed = gated_rms_norm(output, z, weights.norm_scale, shape.eps, shape.gate_activation)
    return linear(normed.reshape(normed.shape[0], -1), weights.out)
