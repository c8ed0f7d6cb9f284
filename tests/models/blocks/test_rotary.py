"""Rotary embedding against transformers' function, and that it only turns."""

import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

from strata.models.blocks.rotary import apply_rotary, inverse_frequencies, rotation_at


def test_partial_rotary_is_theirs() -> None:
    positions = torch.tensor([0, 1, 17, 65_535])
    frequencies = inverse_frequencies(6, 1e4)
    x = torch.randn(4, 3, 10, dtype=torch.float64)
    angles = positions.double()[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    expected = theirs.apply_rotary_pos_emb(x, cos=angles.cos(), sin=angles.sin(), unsqueeze_dim=1)
    assert (apply_rotary(x, rotation_at(positions, frequencies, torch.float64)) - expected).abs().max() < 1e-12


def test_frequencies_are_theirs() -> None:
    expected = 1.0 / (1e6 ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8))
    assert torch.equal(inverse_frequencies(8, 1e6), expected)


def test_products_depend_on_the_distance_only() -> None:
    frequencies = inverse_frequencies(8, 1e4)
    query, key = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def product(query_position: int, key_position: int) -> float:
        turned = [
            apply_rotary(x, rotation_at(torch.tensor([p]), frequencies, torch.float64))
            for x, p in ((query, query_position), (key, key_position))
        ]
        return float((turned[0] * turned[1]).sum())

    assert abs(product(12, 5) - product(60_007, 60_000)) < 1e-9


def test_part_of_the_rows_is_the_rotation_of_those_rows() -> None:
    frequencies = inverse_frequencies(8, 1e4)
    whole = rotation_at(torch.arange(10), frequencies, torch.float32)
    part = rotation_at(torch.arange(3, 7), frequencies, torch.float32)
    assert torch.equal(whole.rows(slice(3, 7)).cos, part.cos) and torch.equal(whole.rows(slice(3, 7)).sin, part.sin)
