"""Parts that families share, described to the C++ library from the model's own packed weights. Knows no family."""

from typing import Any

import torch

from strata.models.blocks.attention import AttentionShape, AttentionWeights
from strata.models.blocks.gated_delta_net import DeltaNetShape, DeltaNetWeights
from strata.models.blocks.linear import GatedMlpWeights, Weight
from strata.models.blocks.moe import MoeShape, MoeWeights
from strata.models.fast.held import PackedExperts, PackedMatrices, PackedTable
from strata.models.weights import TableGather
from strata.native import mixers


class Kept:
    """Keeps alive what the C++ side points to."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def keep(self, value: Any) -> Any:
        """Hold on to something."""
        self._values.append(value)
        return value

    def pointer(self, values: torch.Tensor | None) -> int | None:
        """The address of float32 values (float64, int64 as they are), which are kept; None stays None."""
        if values is None:
            return None
        if values.dtype not in (torch.float64, torch.int64):
            values = values.float()
        kept: torch.Tensor = self.keep(values.contiguous())
        return kept.data_ptr()

    def matrices(self, weight: Weight) -> mixers.Matrices:
        """A packed weight."""
        assert isinstance(weight, PackedMatrices)
        held: PackedMatrices = self.keep(weight)
        return held.native

    def table(self, table: TableGather) -> mixers.Matrices:
        """A packed table; nothing for one whose rows a window brings along."""
        return self.matrices(table.matrices) if isinstance(table, PackedTable) else mixers.Matrices()


def describe_delta_net(kept: Kept, weights: DeltaNetWeights, shape: DeltaNetShape) -> mixers.DeltaNet:
    """A gated delta net."""
    return mixers.DeltaNet(
        in_all=kept.matrices(weights.in_all),
        out=kept.matrices(weights.out),
        conv=kept.pointer(weights.conv),
        decay_rate=kept.pointer(weights.decay_rate),
        decay_bias=kept.pointer(weights.decay_bias),
        norm_scale=kept.pointer(weights.norm_scale),
        key_heads=shape.key_heads,
        value_heads=shape.value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        conv_kernel=shape.conv_kernel,
        gate_is_sigmoid=shape.gate_activation == "sigmoid",
        eps=shape.eps,
    )


def describe_attention(kept: Kept, weights: AttentionWeights, shape: AttentionShape) -> mixers.Attention:
    """Plain causal attention; a family with an indexer fills the rest."""
    return mixers.Attention(
        qkv=kept.matrices(weights.qkv),
        out=kept.matrices(weights.out),
        query_scale=kept.pointer(weights.query_scale),
        key_scale=kept.pointer(weights.key_scale),
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        has_gate=shape.has_output_gate,
        eps=shape.eps,
        key_code=mixers.CELL_CODES[shape.cells.keys.value],
        value_code=mixers.CELL_CODES[shape.cells.values.value],
    )


def describe_experts(kept: Kept, weights: MoeWeights, shape: MoeShape) -> mixers.Mlp:
    """Routed experts and, where there is one, the shared expert."""
    assert isinstance(weights.experts, PackedExperts)
    experts: PackedExperts = kept.keep(weights.experts)
    mlp = mixers.Mlp(
        router=kept.matrices(weights.router),
        layout=experts.layout_address,
        blobs=experts.blobs_address,
        experts=shape.experts,
        per_token=shape.experts_per_token,
        normalize=shape.normalize_weights,
        reads=None if experts.reads is None else experts.reads.handle,
        file_layer=experts.file_layer,
    )
    if weights.shared is not None:
        _fill_dense(kept, mlp, weights.shared)
        if weights.shared_gate is not None:
            mlp.shared_gate = kept.pointer(weights.shared_gate.flatten())
    return mlp


def describe_dense_mlp(kept: Kept, weights: GatedMlpWeights) -> mixers.Mlp:
    """A gated MLP in place of experts."""
    mlp = mixers.Mlp()
    _fill_dense(kept, mlp, weights)
    return mlp


def _fill_dense(kept: Kept, mlp: mixers.Mlp, weights: GatedMlpWeights) -> None:
    mlp.width = weights.down.shape[1]
    mlp.gate_up = kept.matrices(weights.gate_up)
    mlp.down = kept.matrices(weights.down)
