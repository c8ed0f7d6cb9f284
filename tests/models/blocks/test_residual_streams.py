"""Residual gates against transformers' module."""

import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

from strata.models.blocks.residual_streams import ResidualWeights, read_streams, write_streams
from tests.oracle.transformers_model import Float64Everywhere


@pytest.mark.parametrize("streams,has_inject", [(3, True), (4, True), (2, False)])
def test_reading_and_writing_are_theirs(streams: int, has_inject: bool) -> None:
    config = Qwen4ExpTextConfig(hidden_size=6, hc_count=streams, hc_lowrank=5, num_hidden_layers=1)
    module = theirs.Qwen4ExpTextGatedResidual(config, use_combine=has_inject).double()
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)
    x, output = torch.randn(8, streams * 6, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
    down = [module.input_mix_weight_down.weight] + ([module.block_inject_weight.weight] if has_inject else [])
    weights = ResidualWeights(
        norm_scale=1.0 + module.hc_norm.weight,
        down=torch.cat(down),
        up=module.input_mix_weight_up.weight,
        streams=streams,
        eps=1e-6,
    )
    with Float64Everywhere():
        expected = module(x)
    mixed, strengths = read_streams(x, weights)
    if not has_inject:
        assert (mixed - expected).abs().max() < 1e-12 and strengths.shape == (8, 0)
        return
    assert (mixed - expected[0]).abs().max() < 1e-12
    assert (strengths - expected[2]).abs().max() < 1e-12
    written = x + (output.unsqueeze(-2) * expected[2].unsqueeze(-1)).flatten(-2)
    assert (write_streams(x, output, strengths) - written).abs().max() < 1e-12
