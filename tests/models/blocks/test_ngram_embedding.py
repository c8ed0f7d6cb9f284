"""The n-gram embedding against transformers' module: hash, history, end of text, gates and convolution."""

import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

from strata.models.blocks import ngram_embedding as block
from tests.oracle.transformers_model import Float64Everywhere

END = 3


def shape_of(ngram_size: int, module_index: int, streams: int = 2) -> block.NgramShape:
    return block.NgramShape(
        vocabulary_size=50, ngram_size=ngram_size, heads_per_ngram=2, embed_dim=(ngram_size - 1) * 2 * 3,
        table_size_base=60, table_size_multiple=8, seed=77, end_of_text_id=END, conv_kernel=3, streams=streams,
        module_index=module_index,
    )  # fmt: skip


def config_of(shape: block.NgramShape, hidden: int = 6) -> Qwen4ExpTextConfig:
    return Qwen4ExpTextConfig(
        vocab_size=50, hidden_size=hidden, num_hidden_layers=3, layer_types=["linear_attention"] * 3,
        ngram_size=shape.ngram_size, heads_per_ngram=2, ple_embed_dim=shape.embed_dim, ngram_vocab_size_base=60,
        make_ngram_vocab_size_divisible_by=8, seed=77, eos_token_id=END, ple_conv_kernel_size=3, hc_count=shape.streams,
        ple_layer_ids=[1, 2], hc_lowrank=4,
    )  # fmt: skip


@pytest.mark.parametrize("ngram_size,module_index", [(2, 0), (3, 1), (4, 1)])
def test_hash_constants_and_rows_are_theirs(ngram_size: int, module_index: int) -> None:
    shape = shape_of(ngram_size, module_index)
    module = theirs.Qwen4ExpTextNGramEmbedding(config_of(shape), shape.embed_dim, 0, module_index)
    assert shape.multipliers == tuple(module.layer_multipliers.tolist())
    assert shape.head_sizes == tuple(module.head_vocab_sizes)
    assert shape.table_rows == module.ngram_embedding.weight.shape[0]
    tokens = torch.randint(0, 50, (40,))
    tokens[[0, 7, 8, 20, 39]] = END
    with torch.no_grad():
        expected = module(tokens[None], None)[0]
        row_ids = block.table_row_ids(torch.cat((block.first_history(shape), tokens)), shape)
        assert torch.equal(module.ngram_embedding(row_ids).flatten(1), expected)


def test_history_joins_two_calls() -> None:
    shape = shape_of(4, 0)
    tokens = torch.randint(0, 50, (30,))
    tokens[[9, 11]] = END
    extended = torch.cat((block.first_history(shape), tokens))
    whole = block.table_row_ids(extended, shape)
    for cut in range(1, 30):
        later = block.table_row_ids(extended[cut:], shape)
        assert torch.equal(whole[cut:], later)


def test_output_is_theirs() -> None:
    shape = shape_of(3, 0)
    module = theirs.Qwen4ExpTextPLELayer(config_of(shape), 0, 0).double()
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)
    streams, tokens = torch.randn(15, 12, dtype=torch.float64), torch.randint(0, 50, (15,))
    with Float64Everywhere(), torch.no_grad():
        expected = module(streams[None], tokens[None], None)[0]
    weights = block.NgramWeights(
        key=module.key_proj.weight,
        value=module.value_proj.weight,
        key_scale=1.0 + module.norm_key.weight,
        query_scale=1.0 + module.norm_query.weight,
        conv_scale=1.0 + module.norm_conv.weight,
        conv=module.conv1d.weight.squeeze(1).t(),
    )
    row_ids = block.table_row_ids(torch.cat((block.first_history(shape), tokens)), shape)
    embeddings = module.ple_embedding.ngram_embedding.weight[row_ids].flatten(1)
    gated, normed = block.ngram_values(streams, embeddings, weights, shape)
    extended = torch.cat((normed.new_zeros(shape.conv_tail_rows, 12), normed))
    assert (block.ngram_output(gated, extended, weights, shape) - expected).abs().max() < 1e-11


def test_primes_are_consecutive() -> None:
    assert block.primes_from(50, 4) == (53, 59, 61, 67)
    assert block.primes_from(2, 3) == (2, 3, 5)


def test_published_models_hash_constants() -> None:
    shape = block.NgramShape(248320, 3, 8, 2560, 20_000_000, 128, 1234, 0, 4, 4)
    assert shape.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert shape.head_sizes[:3] == (20000003, 20000023, 20000033) and shape.head_sizes[-1] == 20000171
    assert shape.table_rows == 320001536
