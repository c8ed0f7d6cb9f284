"""The config of a plain pre-norm decoder: what llama, qwen3_moe, qwen3_next and qwen3_5_moe have in common.

Knows how their shared fields are named and checked; each family's file says which parts it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata.models.blocks.attention import AttentionShape
from strata.models.blocks.gated_delta_net import DeltaNetShape
from strata.models.blocks.moe import MoeShape
from strata.models.config_fields import (
    ConfigFields,
    RotaryFields,
    read_end_of_text_ids,
    read_rotary,
    require_divisible,
)


@dataclass(frozen=True)
class MlpFields:
    """What follows the mixer of each layer: routed experts, or one dense MLP."""

    moe: MoeShape | None  # None: the family has no experts, every layer is dense
    expert_width: int  # 0: no experts
    shared_width: int | None  # None: the family has no shared expert
    dense_width: int | None  # None: no layer is dense
    layer_is_sparse: tuple[bool, ...]

    def require_moe(self) -> MoeShape:
        """How rows are routed; only for sparse layers."""
        assert self.moe is not None
        return self.moe


@dataclass(frozen=True)
class DecoderConfig:
    """A checked config; whatever a family does not support was refused before this was made."""

    model_type: str
    vocabulary_size: int
    hidden_size: int
    num_layers: int
    max_position: int
    eps: float
    norm_offset: float  # 1.0 where norms multiply by 1 + weight, else 0.0
    ties_embeddings: bool
    end_of_text_ids: tuple[int, ...]
    layer_is_full_attention: tuple[bool, ...]
    attention: AttentionShape
    rotary: RotaryFields
    delta_net: DeltaNetShape | None  # None: the family has none, every layer is full attention
    mlp: MlpFields
    has_head_norms: bool = True  # queries and keys are normed head by head

    def require_delta_net(self) -> DeltaNetShape:
        """The delta net's sizes; only for families and layers that have one."""
        assert self.delta_net is not None
        return self.delta_net


def read_decoder_config(
    fields: ConfigFields,
    model_type: str,
    *,
    norm_offset: float,
    has_output_gate: bool,
    default_rotary_factor: float,
    layer_is_full_attention: tuple[bool, ...],
    delta_net: DeltaNetShape | None,
    mlp: MlpFields,
    has_head_norms: bool = True,
) -> DecoderConfig:
    """The fields that every such family has, joined with the parts that the family read or knows.

    Refuses fields that nobody read.
    """
    fields.only("hidden_act", ("silu",), "silu")
    fields.only("attention_bias", (False,), False)
    attention = read_attention(fields, has_output_gate)
    config = DecoderConfig(
        model_type=model_type,
        vocabulary_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        num_layers=len(layer_is_full_attention),
        max_position=fields.integer("max_position_embeddings"),
        eps=attention.eps,
        norm_offset=norm_offset,
        ties_embeddings=fields.flag("tie_word_embeddings", False),
        end_of_text_ids=read_end_of_text_ids(fields),
        layer_is_full_attention=layer_is_full_attention,
        attention=attention,
        rotary=read_rotary(fields, attention.head_dim, default_rotary_factor),
        delta_net=delta_net,
        mlp=mlp,
        has_head_norms=has_head_norms,
    )
    fields.refuse_unknown()
    return config


def read_attention(fields: ConfigFields, has_output_gate: bool) -> AttentionShape:
    """Heads of the full-attention layers."""
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", num_heads)
    require_divisible(fields, "num_attention_heads", num_heads, "num_key_value_heads", kv_heads)
    if not fields.has("head_dim"):
        require_divisible(fields, "hidden_size", hidden_size, "num_attention_heads", num_heads)
    return AttentionShape(
        query_heads=num_heads,
        kv_heads=kv_heads,
        head_dim=fields.integer("head_dim", hidden_size // num_heads),
        eps=fields.number("rms_norm_eps", 1e-6),
        has_output_gate=has_output_gate,
    )


def read_delta_net(fields: ConfigFields, gate_activation: str = "silu") -> DeltaNetShape:
    """Heads and convolution of the delta net."""
    shape = DeltaNetShape(
        key_heads=fields.integer("linear_num_key_heads"),
        value_heads=fields.integer("linear_num_value_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv_kernel=fields.integer("linear_conv_kernel_dim"),
        eps=fields.number("rms_norm_eps", 1e-6),
        gate_activation=gate_activation,
    )
    require_divisible(fields, "linear_num_value_heads", shape.value_heads, "linear_num_key_heads", shape.key_heads)
    return shape


def read_moe(fields: ConfigFields, normalize_weights: bool) -> MoeShape:
    """Router and number of experts."""
    experts = fields.integer("num_local_experts" if fields.has("num_local_experts") else "num_experts")
    if fields.integer("num_experts", experts) != experts:
        raise fields.refusal("num_experts", fields.raw("num_experts"), f"num_local_experts says {experts}")
    per_token = fields.integer("num_experts_per_tok")
    if per_token > experts:
        raise fields.refusal("num_experts_per_tok", per_token, f"it must be <= the number of experts = {experts}")
    return MoeShape(experts, per_token, normalize_weights)


def read_mlp(fields: ConfigFields, num_layers: int, normalize_weights: bool, has_shared_expert: bool) -> MlpFields:
    """Experts, and the layers that are dense.

    A layer is dense if `mlp_only_layers` lists it or if its number (from 1) is no multiple of `decoder_sparse_step`.
    """
    mlp_only, step = fields.integers("mlp_only_layers", ()), fields.integer("decoder_sparse_step", 1)
    for layer in mlp_only:
        if layer >= num_layers:
            raise fields.refusal("mlp_only_layers", list(mlp_only), f"the layers are 0 to {num_layers - 1}")
    is_sparse = tuple(index not in mlp_only and (index + 1) % step == 0 for index in range(num_layers))
    fields.ignore("intermediate_size")
    return MlpFields(
        moe=read_moe(fields, normalize_weights),
        expert_width=fields.integer("moe_intermediate_size"),
        shared_width=fields.integer("shared_expert_intermediate_size") if has_shared_expert else None,
        dense_width=None if all(is_sparse) else fields.integer("intermediate_size"),
        layer_is_sparse=is_sparse,
    )


def read_dense_mlp(fields: ConfigFields, num_layers: int) -> MlpFields:
    """One gated MLP a layer, no experts and no biases."""
    fields.only("mlp_bias", (False,), False)
    return MlpFields(None, 0, None, fields.integer("intermediate_size"), (False,) * num_layers)


def require_model_type(values: Mapping[str, Any], *names: str) -> ConfigFields:
    """The fields of a text-only config whose `model_type` is one of `names`."""
    fields = ConfigFields(values)
    fields.only("model_type", names)
    return fields
