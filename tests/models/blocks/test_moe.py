"""The mixture of experts against transformers' block; ties go to the lower expert."""

import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

from strata.models.blocks.linear import GatedMlpWeights
from strata.models.blocks.moe import ExpertTensors, MoeShape, MoeWeights, expert_rows, expert_rows_by_pair, moe, route
from tests.oracle.transformers_model import Float64Everywhere


@pytest.mark.parametrize("rows,normalize", [(1, True), (9, False), (50, True)])
def test_block_is_theirs(rows: int, normalize: bool) -> None:
    config = Qwen4ExpTextConfig(
        hidden_size=10, moe_intermediate_size=6, shared_expert_intermediate_size=7, num_experts=9,
        num_experts_per_tok=3, norm_topk_prob=normalize, num_hidden_layers=1, experts_implementation="eager",
    )  # fmt: skip
    block = theirs.Qwen4ExpTextSparseMoeBlock(config).double()
    for parameter in block.parameters():
        parameter.data = torch.randn_like(parameter)
    x = torch.randn(rows, 10, dtype=torch.float64)
    with Float64Everywhere(), torch.no_grad():
        expected = block(x[None])[0]
    shared, experts = block.shared_expert, block.experts
    weights = MoeWeights(
        router=block.gate.weight,
        experts=ExpertTensors(experts.gate_up_proj, experts.down_proj),
        shared=GatedMlpWeights(torch.cat((shared.gate_proj.weight, shared.up_proj.weight)), shared.down_proj.weight),
        shared_gate=block.shared_expert_gate.weight,
    )
    seen = []
    found = moe(x, weights, MoeShape(9, 3, normalize), 4, lambda layer, ids: seen.append((layer, ids)))
    assert (found - expected).abs().max() < 1e-11
    assert seen[0][0] == 4 and seen[0][1].shape == (rows, 3)


def test_ties_go_to_the_lower_expert() -> None:
    router = torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0], [0.0]])
    expert_ids, weights = route(torch.ones(1, 1), router, MoeShape(6, 4, True))
    assert expert_ids.tolist() == [[1, 2, 4, 0]]
    assert abs(float(weights.sum()) - 1.0) < 1e-6
    assert weights[0, 0] > weights[0, 3]


def test_both_ways_to_compute_experts_agree() -> None:
    x, experts = torch.randn(20, 8), ExpertTensors(torch.randn(5, 12, 8), torch.randn(5, 8, 6))
    expert_ids = torch.stack([torch.randperm(5)[:2] for _ in range(20)])
    grouped, by_pair = expert_rows(x, expert_ids, experts), expert_rows_by_pair(x, expert_ids, experts)
    assert (grouped - by_pair).abs().max() < 1e-4


def test_a_windows_row_has_the_same_bits_alone_and_beside_others() -> None:
    weights = MoeWeights(torch.randn(8, 64), ExpertTensors(torch.randn(8, 64, 64), torch.randn(8, 64, 32)))
    x = torch.randn(12, 64)
    together = moe(x, weights, MoeShape(8, 3, True))
    for row in range(12):
        assert torch.equal(moe(x[row : row + 1], weights, MoeShape(8, 3, True))[0], together[row])
