"""Tensor names and shapes of a plain pre-norm decoder, and how they become the blocks' weights.

Knows canonical names; how a family publishes its delta net's projections is the family's part.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from strata.errors import WeightFileError
from strata.models.blocks.attention import AttentionWeights
from strata.models.blocks.gated_delta_net import DeltaNetShape, DeltaNetWeights
from strata.models.blocks.linear import GatedMlpWeights, Weight
from strata.models.blocks.moe import Experts, MoeWeights
from strata.models.decoder_config import DecoderConfig
from strata.models.weights import TableGather, TakenRows, Weights

Shapes = dict[str, tuple[int, ...]]


class DeltaProjections(Protocol):
    """How a family publishes the four input projections of its delta net."""

    def shapes(self, shape: DeltaNetShape, hidden_size: int) -> Shapes:
        """Tensor name after `linear_attn.` -> shape."""
        ...

    def read(self, reader: "TensorReader", prefix: str, shape: DeltaNetShape) -> Weight:
        """The projections' rows in the order q, k, v, z, b, a: what `DeltaNetWeights.in_all` holds."""
        ...


class SeparateProjections:
    """`in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`, each by itself."""

    def shapes(self, shape: DeltaNetShape, hidden_size: int) -> Shapes:
        return {
            "in_proj_qkv.weight": (shape.conv_width, hidden_size),
            "in_proj_z.weight": (shape.value_width, hidden_size),
            "in_proj_b.weight": (shape.value_heads, hidden_size),
            "in_proj_a.weight": (shape.value_heads, hidden_size),
        }

    def read(self, reader: "TensorReader", prefix: str, shape: DeltaNetShape) -> Weight:
        return reader.matrix(*(f"{prefix}in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")))


class TensorReader:
    """Reads tensors whose shapes the config fixes; a tensor of another shape is refused by name."""

    def __init__(self, weights: Weights, expected: Shapes) -> None:
        self._weights = weights
        self._expected = expected

    def values(self, name: str) -> torch.Tensor:
        """A vector or taps, in the compute dtype."""
        self._check(name)
        return self._weights.values(name)

    def matrix(self, *parts: str | TakenRows) -> Weight:
        """Matrices under one another."""
        for part in parts:
            self._check(part if isinstance(part, str) else part.name)
        return self._weights.matrix(*parts)

    def table(self, name: str) -> TableGather:
        """A matrix whose rows are looked up."""
        self._check(name)
        return self._weights.table(name)

    def experts(self, prefix: str) -> Experts:
        """A layer's routed experts."""
        self._check(f"{prefix}experts.gate_up_proj")
        self._check(f"{prefix}experts.down_proj")
        return self._weights.experts(prefix)

    def _check(self, name: str) -> None:
        found, wanted = self._weights.shape(name), self._expected[name]
        if found != wanted:
            raise WeightFileError(f"tensor {name} has the shape {list(found)}, the config means {list(wanted)}")


@dataclass(frozen=True)
class LayerWeights:
    """One layer: a mixer (attention or delta net) and an MLP (experts or dense)."""

    mixer_norm_scale: torch.Tensor  # [hidden]
    mlp_norm_scale: torch.Tensor  # [hidden]
    mixer: AttentionWeights | DeltaNetWeights
    mlp: MoeWeights | GatedMlpWeights


@dataclass(frozen=True)
class DecoderWeights:
    """Everything that a decoder computes with."""

    embedding: TableGather  # [vocabulary, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm_scale: torch.Tensor  # [hidden]
    head: Weight  # [vocabulary, hidden]


def expected_tensors(config: DecoderConfig, projections: DeltaProjections) -> Shapes:
    """Every tensor that `read_weights` reads: canonical name -> shape."""
    table = (config.vocabulary_size, config.hidden_size)
    shapes: Shapes = {"model.embed_tokens.weight": table, "model.norm.weight": (config.hidden_size,)}
    if not config.ties_embeddings:
        shapes["lm_head.weight"] = table
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (config.hidden_size,)
        if config.layer_is_full_attention[index]:
            mixer = _attention_shapes(config, prefix + "self_attn.")
        else:
            mixer = _delta_net_shapes(config, prefix + "linear_attn.", projections)
        is_sparse = config.mlp.layer_is_sparse[index]
        shapes |= mixer | (_moe_shapes if is_sparse else _dense_shapes)(config, prefix + "mlp.")
    return shapes


def read_weights(config: DecoderConfig, weights: Weights, projections: DeltaProjections) -> DecoderWeights:
    """Read and check every tensor."""
    reader = TensorReader(weights, expected_tensors(config, projections))
    embedding = reader.table("model.embed_tokens.weight")
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        if config.layer_is_full_attention[index]:
            mixer: AttentionWeights | DeltaNetWeights = _read_attention(config, reader, prefix + "self_attn.")
        else:
            mixer = _read_delta_net(config, reader, prefix + "linear_attn.", projections)
        is_sparse = config.mlp.layer_is_sparse[index]
        layers.append(
            LayerWeights(
                mixer_norm_scale=reader.values(prefix + "input_layernorm.weight") + config.norm_offset,
                mlp_norm_scale=reader.values(prefix + "post_attention_layernorm.weight") + config.norm_offset,
                mixer=mixer,
                mlp=(_read_moe(config, reader, prefix + "mlp.") if is_sparse else _read_dense(reader, prefix + "mlp.")),
            )
        )
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm_scale=reader.values("model.norm.weight") + config.norm_offset,
        head=reader.matrix("model.embed_tokens.weight" if config.ties_embeddings else "lm_head.weight"),
    )


def _attention_shapes(config: DecoderConfig, prefix: str) -> Shapes:
    shape, hidden = config.attention, config.hidden_size
    query_width, kv_width = shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    shapes: Shapes = {
        prefix + "q_proj.weight": (query_width * (2 if shape.has_output_gate else 1), hidden),
        prefix + "k_proj.weight": (kv_width, hidden),
        prefix + "v_proj.weight": (kv_width, hidden),
        prefix + "o_proj.weight": (hidden, query_width),
    }
    if config.has_head_norms:
        shapes |= {prefix + "q_norm.weight": (shape.head_dim,), prefix + "k_norm.weight": (shape.head_dim,)}
    return shapes


def _read_attention(config: DecoderConfig, reader: TensorReader, prefix: str) -> AttentionWeights:
    return AttentionWeights(
        qkv=reader.matrix(*(f"{prefix}{part}_proj.weight" for part in ("q", "k", "v"))),
        out=reader.matrix(prefix + "o_proj.weight"),
        query_scale=_head_norm(config, reader, prefix + "q_norm.weight"),
        key_scale=_head_norm(config, reader, prefix + "k_norm.weight"),
    )


def _head_norm(config: DecoderConfig, reader: TensorReader, name: str) -> torch.Tensor | None:
    return reader.values(name) + config.norm_offset if config.has_head_norms else None


def _delta_net_shapes(config: DecoderConfig, prefix: str, projections: DeltaProjections) -> Shapes:
    shape, hidden = config.require_delta_net(), config.hidden_size
    return {
        **{prefix + name: size for name, size in projections.shapes(shape, hidden).items()},
        prefix + "conv1d.weight": (shape.conv_width, 1, shape.conv_kernel),
        prefix + "A_log": (shape.value_heads,),
        prefix + "dt_bias": (shape.value_heads,),
        prefix + "norm.weight": (shape.value_dim,),
        prefix + "out_proj.weight": (hidden, shape.value_width),
    }


def _read_delta_net(
    config: DecoderConfig, reader: TensorReader, prefix: str, projections: DeltaProjections
) -> DeltaNetWeights:
    return DeltaNetWeights(
        in_all=projections.read(reader, prefix, config.require_delta_net()),
        conv=reader.values(prefix + "conv1d.weight").squeeze(1).t().contiguous(),
        decay_rate=-reader.values(prefix + "A_log").exp(),
        decay_bias=reader.values(prefix + "dt_bias"),
        norm_scale=reader.values(prefix + "norm.weight"),
        out=reader.matrix(prefix + "out_proj.weight"),
    )


def _moe_shapes(config: DecoderConfig, prefix: str) -> Shapes:
    mlp, hidden = config.mlp, config.hidden_size
    experts = mlp.require_moe().experts
    shapes: Shapes = {
        prefix + "gate.weight": (experts, hidden),
        prefix + "experts.gate_up_proj": (experts, 2 * mlp.expert_width, hidden),
        prefix + "experts.down_proj": (experts, hidden, mlp.expert_width),
    }
    if mlp.shared_width is not None:
        shapes |= _gated_mlp_shapes(prefix + "shared_expert.", hidden, mlp.shared_width)
        shapes[prefix + "shared_expert_gate.weight"] = (1, hidden)
    return shapes


def _read_moe(config: DecoderConfig, reader: TensorReader, prefix: str) -> MoeWeights:
    has_shared = config.mlp.shared_width is not None
    return MoeWeights(
        router=reader.matrix(prefix + "gate.weight"),
        experts=reader.experts(prefix),
        shared=_read_dense(reader, prefix + "shared_expert.") if has_shared else None,
        shared_gate=reader.values(prefix + "shared_expert_gate.weight") if has_shared else None,
    )


def _dense_shapes(config: DecoderConfig, prefix: str) -> Shapes:
    assert config.mlp.dense_width is not None
    return _gated_mlp_shapes(prefix, config.hidden_size, config.mlp.dense_width)


def _gated_mlp_shapes(prefix: str, hidden: int, width: int) -> Shapes:
    return {
        prefix + "gate_proj.weight": (width, hidden),
        prefix + "up_proj.weight": (width, hidden),
        prefix + "down_proj.weight": (hidden, width),
    }


def _read_dense(reader: TensorReader, prefix: str) -> GatedMlpWeights:
    return GatedMlpWeights(
        gate_up=reader.matrix(*(f"{prefix}{part}_proj.weight" for part in ("gate", "up"))),
        down=reader.matrix(prefix + "down_proj.weight"),
    )
