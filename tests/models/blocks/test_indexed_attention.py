"""The indexer against transformers' module; ties go to the lower block; gathered attention is masked attention."""

import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

from strata.errors import EngineError
from strata.models.blocks import indexed_attention as block
from strata.models.blocks.rotary import inverse_frequencies, rotation_at
from tests.oracle.transformers_model import Float64Everywhere, SelectionWatch

ROWS = 45


@pytest.mark.parametrize("heads,budget,ratio", [(1, 8, 4), (3, 12, 3), (2, 4, 2)])
def test_selected_cells_are_theirs(heads: int, budget: int, ratio: int) -> None:
    config = Qwen4ExpTextConfig(
        hidden_size=9, num_hidden_layers=1, layer_types=["indexed_attention"], head_dim=6, indexer_n_heads=heads,
        indexer_kv_heads=1, indexer_head_dim=8, indexer_budget=budget, indexer_compress_ratio=ratio,
    )  # fmt: skip
    module = theirs.Qwen4ExpTextQSAIndexer(config, 0).double()
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)
    x, positions, frequencies = torch.randn(ROWS, 9).double(), torch.arange(ROWS), inverse_frequencies(6, 1e4)
    angles = (positions.double()[:, None] * frequencies).repeat(1, 2)[None]
    causal = (torch.arange(ROWS)[None, :] <= positions[:, None])[None, None]
    with torch.no_grad(), SelectionWatch(ROWS, ratio), Float64Everywhere():
        expected = module(x[None], (angles.cos(), angles.sin()), causal, None)[0, 0]
    shape = block.IndexerShape(heads, 8, budget, ratio)
    weights = block.IndexerWeights(
        module.index_qk_proj.weight.detach(),
        1 + module.q_layernorm.weight.detach(),
        1 + module.k_layernorm.weight.detach(),
    )
    query, raw = block.index_rows(x, weights, shape, rotation_at(positions, frequencies, torch.float64))
    pooled = block.pool_blocks(raw[: ROWS // ratio * ratio], 0, weights, shape, frequencies)
    sparse = positions >= shape.dense_positions
    cells, is_visible = block.select_cells(query[sparse], pooled, positions[sparse], shape)
    found = torch.zeros(len(cells), ROWS).scatter_add(1, cells, is_visible.float()) > 0
    assert torch.equal(found, expected[sparse])
    assert torch.equal(expected[~sparse], causal[0, 0][~sparse])
    assert bool((is_visible.sum(dim=1) == found.sum(dim=1)).all())  # no cell twice


def test_ties_go_to_the_lower_block() -> None:
    scores = torch.tensor([[0.0, 2.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 3.0, 3.0, 3.0]])
    assert block.choose_blocks(scores, 3).tolist() == [[0, 1, 3], [0, 1, 2], [2, 3, 4]]


def test_scores_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(EngineError, match="not finite"):
        block.choose_blocks(torch.tensor([[0.0, float("nan"), 1.0, 2.0]]), 2)


def test_blocks_pooled_later_have_the_same_keys() -> None:
    shape = block.IndexerShape(1, 8, 8, 4)
    weights = block.IndexerWeights(torch.randn(16, 5), torch.randn(8), torch.randn(8))
    raw, frequencies = torch.randn(40, 8), inverse_frequencies(4, 1e4)
    whole = block.pool_blocks(raw, 0, weights, shape, frequencies)
    assert torch.equal(block.pool_blocks(raw[24:32], 6, weights, shape, frequencies), whole[6:8])


def test_gathered_attention_is_masked_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values = torch.randn(2, 60, 2, 8, dtype=torch.float64)
    query = torch.randn(7, 4, 8, dtype=torch.float64)
    cells = torch.stack([torch.randperm(60)[:11].sort().values for _ in range(7)])
    is_visible = torch.rand(7, 11) > 0.3
    is_visible[:, 0] = True
    mask = torch.zeros(7, 60).scatter_add(1, cells, is_visible.double().float()) > 0
    scores = torch.einsum("rhd,chd->rhc", query, keys.repeat_interleave(2, dim=1)) / 8**0.5
    shares = torch.softmax(scores.masked_fill(~mask[:, None], float("-inf")), dim=-1)
    expected = torch.einsum("rhc,chd->rhd", shares, values.repeat_interleave(2, dim=1)).flatten(1)
    assert (block.attend_cells(query, keys, values, cells, is_visible) - expected).abs().max() < 1e-12
    monkeypatch.setattr(block, "GATHER_BYTES", 1)
    assert (block.attend_cells(query, keys, values, cells, is_visible) - expected).abs().max() < 1e-12
