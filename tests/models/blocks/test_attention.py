"""Causal attention against a plain masked softmax, over many splits of keys."""

import pytest
import torch

from strata.models.blocks.attention import (
    AttentionShape,
    AttentionWeights,
    attend_causal,
    finish_rows,
    project_rows,
)
from strata.models.blocks.norm import rms_norm
from strata.models.blocks.rotary import apply_rotary, inverse_frequencies, rotation_at


def plain_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor):
    """query [rows, heads, dim], keys and values [cells, kv heads, dim] -> [rows, heads * dim]."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("rhd,chd->hrc", query, keys) / query.shape[-1] ** 0.5
    hidden = torch.arange(keys.shape[0])[None, :] > positions[:, None]
    shares = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return torch.einsum("hrc,chd->rhd", shares, values).flatten(1)


@pytest.mark.parametrize(
    "first,rows,heads,kv_heads", [(0, 5, 4, 2), (500, 40, 2, 2), (1030, 1, 6, 1), (1500, 36, 3, 1)]
)
def test_splits_merge_to_plain_attention(first: int, rows: int, heads: int, kv_heads: int) -> None:
    keys, values = torch.randn(2, 1536, kv_heads, 8, dtype=torch.float64)
    query = 3 * torch.randn(rows, heads, 8, dtype=torch.float64)
    positions = torch.arange(first, first + rows)
    found = attend_causal(query, keys, values, positions, first + rows)
    assert (found - plain_attention(query, keys, values, positions)).abs().max() < 1e-12


def test_a_row_has_the_same_bits_alone_and_beside_later_rows() -> None:
    keys, values = torch.randn(2, 1024, 2, 64)
    query, positions = torch.randn(6, 4, 64), torch.arange(509, 515)
    together = attend_causal(query, keys, values, positions, 515)
    for row in range(6):
        alone = attend_causal(query[row : row + 1], keys, values, positions[row : row + 1], int(positions[row]) + 1)
        assert torch.equal(alone[0], together[row])


def test_projection_norms_rotates_and_splits_the_gate_per_head() -> None:
    shape = AttentionShape(query_heads=2, kv_heads=1, head_dim=4, has_output_gate=True)
    qkv, x = torch.randn(2 * 8 + 2 * 4, 6, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
    scale, out = torch.randn(4, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)
    rotation = rotation_at(torch.arange(3), inverse_frequencies(2, 1e4), torch.float64)
    weights = AttentionWeights(qkv, out, scale, 2 * scale)
    projected = project_rows(x, weights, shape, rotation)
    by_head = (x @ qkv[:16].t()).view(3, 2, 8)
    assert (projected.query - apply_rotary(rms_norm(by_head[..., :4], scale, 1e-6), rotation)).abs().max() < 1e-12
    key = (x @ qkv[16:20].t()).view(3, 1, 4)
    assert (projected.key - apply_rotary(rms_norm(key, 2 * scale, 1e-6), rotation)).abs().max() < 1e-12
    assert (projected.value - (x @ qkv[20:].t()).view(3, 1, 4)).abs().max() < 1e-12
    attended = torch.randn(3, 8, dtype=torch.float64)
    expected = (attended * torch.sigmoid(by_head[..., 4:].flatten(1))) @ out.t()
    assert (finish_rows(attended, projected.gate, weights) - expected).abs().max() < 1e-12
