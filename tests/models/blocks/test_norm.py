"""Norms against transformers' modules in float64."""

import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

from strata.models.blocks.norm import gated_rms_norm, grouped_rms_norm, rms_norm
from tests.oracle.transformers_model import Float64Everywhere

LIMIT = 1e-12


def test_rms_norm_is_theirs() -> None:
    x, weight = torch.randn(5, 3, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    module = theirs.Qwen4ExpTextRMSNorm(7, eps=1e-5).double()
    module.weight.data = weight
    with Float64Everywhere():
        expected = module(x)
    assert (rms_norm(x, 1 + weight, 1e-5) - expected).abs().max() < LIMIT


def test_grouped_norm_is_theirs() -> None:
    x, weight = torch.randn(5, 21, dtype=torch.float64), torch.randn(21, dtype=torch.float64)
    module = theirs.Qwen4ExpTextRMSNorm(21, group_size=7, eps=1e-6).double()
    module.weight.data = weight
    with Float64Everywhere():
        expected = module(x)
    assert (grouped_rms_norm(x, 1 + weight, 3, 1e-6) - expected).abs().max() < LIMIT


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gated_norm_is_theirs(activation: str) -> None:
    x, gate, weight = (torch.randn(5, 9, dtype=torch.float64) for _ in range(3))
    module = theirs.Qwen4ExpTextRMSNormGated(9, eps=1e-6, activation=activation).double()
    module.weight.data = weight[0]
    with Float64Everywhere():
        expected = module(x, gate)
    assert (gated_rms_norm(x, gate, weight[0], 1e-6, activation) - expected).abs().max() < LIMIT
