"""The delta rule against transformers' functions; chunk and steps are one rule."""

import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

from strata.models.blocks.gated_delta_net import (
    DeltaNetShape,
    DeltaRuleRows,
    delta_rule_chunk,
    delta_rule_inputs,
    delta_rule_steps,
)
from tests.oracle.transformers_model import Float64Everywhere


def random_inputs(rows: int, shape: DeltaNetShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Convolved rows, beta and log-decay."""
    convolved = torch.randn(rows, shape.conv_width, dtype=torch.float64)
    beta = torch.rand(rows, shape.value_heads, dtype=torch.float64)
    return convolved, beta, -torch.rand(rows, shape.value_heads, dtype=torch.float64)


def expected_of(convolved, beta, log_decay, shape: DeltaNetShape, state: torch.Tensor, rule):
    """What transformers' `rule` gives: outputs [rows, heads, dim] and the new state [heads, key_dim, value_dim]."""
    widths = (shape.key_heads * shape.key_dim, shape.key_heads * shape.key_dim, shape.value_width)
    query, key, value = convolved[None].split(widths, dim=-1)
    with Float64Everywhere():
        output, new_state = rule(
            query.unflatten(-1, (shape.key_heads, -1)),
            key.unflatten(-1, (shape.key_heads, -1)),
            value.unflatten(-1, (shape.value_heads, -1)),
            g=log_decay[None],
            beta=beta[None],
            initial_state=state[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
    return output[0], new_state[0]


@pytest.mark.parametrize("rows,key_heads,value_heads", [(1, 1, 1), (17, 2, 4), (64, 2, 6)])
def test_chunk_and_steps_are_theirs(rows: int, key_heads: int, value_heads: int) -> None:
    shape = DeltaNetShape(key_heads, value_heads, key_dim=6, value_dim=5, conv_kernel=4)
    convolved, beta, log_decay = random_inputs(rows, shape)
    state = torch.randn(value_heads, 6, 5, dtype=torch.float64)
    inputs = delta_rule_inputs(convolved, beta, log_decay, shape)
    output, new_state = delta_rule_chunk(inputs, state)
    for rule in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        expected, expected_state = expected_of(convolved, beta, log_decay, shape, state, rule)
        assert (output - expected).abs().max() < 1e-11
        assert (new_state - expected_state).abs().max() < 1e-11
    by_slot = delta_rule_inputs(convolved[None], beta[None], log_decay[None], shape)
    stepped, stepped_state = delta_rule_steps(by_slot, state[None])
    assert (stepped[0] - expected).abs().max() < 1e-11
    assert (stepped_state[0] - expected_state).abs().max() < 1e-11


def test_padded_steps_leave_the_state_as_it_is() -> None:
    state = torch.randn(1, 2, 4, 3)
    zeros = DeltaRuleRows(*(torch.zeros(1, 3, 2, n) for n in (4, 4, 3)), torch.zeros(1, 3, 2), torch.zeros(1, 3, 2))
    assert torch.equal(delta_rule_steps(zeros, state)[1], state)


def test_slots_side_by_side_have_the_bits_of_each_alone() -> None:
    shape = DeltaNetShape(2, 4, key_dim=32, value_dim=32, conv_kernel=4)
    convolved, beta, log_decay = (t.float().unflatten(0, (3, 4)) for t in random_inputs(12, shape))
    state = torch.randn(3, 4, 32, 32)
    together = delta_rule_steps(delta_rule_inputs(convolved, beta, log_decay, shape), state)
    for slot in range(3):
        one = slice(slot, slot + 1)
        alone = delta_rule_steps(delta_rule_inputs(convolved[one], beta[one], log_decay[one], shape), state[one])
        assert torch.equal(alone[0][0], together[0][slot]) and torch.equal(alone[1][0], together[1][slot])
