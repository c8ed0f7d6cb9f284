"""The reader of qwen4_exp's tensors checks them; an n-gram table may stay where it is."""

import pytest
import torch

from strata.errors import WeightFileError
from strata.models import qwen4_exp
from strata.models.base import LogitRows, Segment
from strata.models.qwen4_exp_weights import Qwen4ExpReader
from strata.models.weights import TensorWeights
from strata.weights.source import MemorySource
from tests.models.tiny_qwen4_exp import tiny_config, tiny_model, tiny_tensors, tiny_text


class CountingSource(MemorySource):
    """Keeps which tensors were read whole and how many rows were gathered."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.whole: set[str] = set()
        self.rows_read = 0

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        self.whole.add(name)
        return super().tensor(name, dtype)

    def rows(self, name: str, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        self.rows_read += len(row_ids)
        return super().rows(name, row_ids, dtype)


def test_a_table_that_is_not_resident_gives_the_same_bits() -> None:
    source, text = CountingSource(tiny_tensors()), tiny_text(40)
    model = qwen4_exp.build(
        qwen4_exp.parse_config(tiny_config()), TensorWeights(source, torch.float32), most_table_bytes=0
    )
    found = model.read([Segment(model.new_state(), text)], LogitRows.ALL).logits
    kept = tiny_model()
    assert torch.equal(found, kept.read([Segment(kept.new_state(), text)], LogitRows.ALL).logits)
    assert not any("ngram_embedding" in name for name in source.whole)
    assert source.rows_read == 40 * 4 * 2  # rows, heads, layers


def test_every_expected_tensor_is_read_and_no_other() -> None:
    source = CountingSource(tiny_tensors())
    qwen4_exp.build(qwen4_exp.parse_config(tiny_config()), TensorWeights(source, torch.float32))
    assert source.whole == set(tiny_tensors())


def test_a_wrong_shape_is_refused_with_both_shapes() -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors = tiny_tensors() | {name: torch.zeros(31, 32)}
    with pytest.raises(WeightFileError, match=rf"{name} has shape \[31, 32\].*\[32, 32\]"):
        qwen4_exp.build(qwen4_exp.parse_config(tiny_config()), TensorWeights(MemorySource(tensors), torch.float32))


def test_a_missing_tensor_is_refused_by_name() -> None:
    tensors = dict(tiny_tensors())
    del tensors["model.layers.0.linear_attn.A_log"]
    with pytest.raises(WeightFileError, match=r"model\.layers\.0\.linear_attn\.A_log"):
        qwen4_exp.build(qwen4_exp.parse_config(tiny_config()), TensorWeights(MemorySource(tensors), torch.float32))


def test_hash_constants_in_the_files_must_be_the_configs() -> None:
    name = "model.layers.0.ple.ple_embedding.layer_multipliers"
    tensors = tiny_tensors() | {name: torch.tensor([1, 2, 3])}
    with pytest.raises(WeightFileError, match="layer_multipliers"):
        qwen4_exp.build(qwen4_exp.parse_config(tiny_config()), TensorWeights(MemorySource(tensors), torch.float32))


def test_maps_that_share_an_input_are_joined_and_norms_hold_one_plus_weight() -> None:
    tensors = tiny_tensors()
    reader = Qwen4ExpReader(
        qwen4_exp.parse_config(tiny_config()), TensorWeights(MemorySource(tensors), torch.float32), True
    )
    prefix = "model.layers.0.linear_attn."
    net = reader.delta_net(prefix).weights
    assert torch.equal(net.in_all[-4:], tensors[f"{prefix}in_proj_a.weight"])
    assert torch.equal(net.in_all[:128], tensors[f"{prefix}in_proj_qkv.weight"])
    assert torch.equal(net.conv[3], tensors[f"{prefix}conv1d.weight"][:, 0, 3])
    residual = reader.residual("model.layers.0.attn_hyper_connection.", has_inject=True)
    assert residual.down.shape == (32 + 4, 128)
    assert torch.equal(residual.norm_scale, tensors["model.layers.0.attn_hyper_connection.hc_norm.weight"] + 1.0)
