"""The config of `qwen4_exp`: which fields of config.json it reads, what it supports, which tensors follow from it.

Knows names and sizes only; the model is in `qwen4_exp.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strata.models.blocks.attention import AttentionShape
from strata.models.blocks.gated_delta_net import DeltaNetShape
from strata.models.blocks.indexed_attention import IndexerShape
from strata.models.blocks.moe import MoeShape
from strata.models.blocks.ngram_embedding import NgramShape
from strata.models.config_fields import (
    MOST_LAYERS,
    ConfigFields,
    RotaryFields,
    read_end_of_text_ids,
    read_layer_types,
    read_rotary,
    require_divisible,
    text_fields,
)
from strata.models.decoder_config import read_attention, read_delta_net

MODEL_TYPES = ("qwen4_exp", "qwen4_exp_text")
FULL_ATTENTION_NAMES = ("full_attention", "indexed_attention")  # published and as saved again: both are indexed


@dataclass(frozen=True)
class Qwen4ExpConfig:
    """A checked config; whatever this family does not support was refused before this was made."""

    vocabulary_size: int
    hidden_size: int
    max_position: int
    eps: float
    ties_embeddings: bool
    end_of_text_ids: tuple[int, ...]
    layer_is_attention: tuple[bool, ...]
    attention: AttentionShape
    indexer: IndexerShape
    rotary: RotaryFields
    delta_net: DeltaNetShape
    moe: MoeShape
    expert_width: int
    shared_width: int
    streams: int
    low_rank: int
    ngrams: Mapping[int, NgramShape]  # layer (from 0) -> its n-gram embedding
    has_mtp: bool

    @property
    def num_layers(self) -> int:
        return len(self.layer_is_attention)

    @property
    def stream_width(self) -> int:
        return self.streams * self.hidden_size


def parse_config(values: Mapping[str, Any]) -> Qwen4ExpConfig:
    """config.json, with `text_config` inside or text-only, as a checked config. Raises ConfigError naming the field."""
    fields = text_fields(values, "qwen4_exp")
    fields.only("model_type", MODEL_TYPES, "qwen4_exp_text")
    fields.only("hidden_act", ("silu",), "silu")
    fields.only("attention_bias", (False,), False)
    fields.only("mtp_use_dedicated_embeddings", (False,), False)
    layer_is_attention = read_layer_types(
        fields, fields.integer("num_hidden_layers", maximum=MOST_LAYERS), FULL_ATTENTION_NAMES
    )
    attention = read_attention(fields, True)
    rotary = read_rotary(fields, attention.head_dim, 1.0)
    gate_activation = fields.only("output_gate_type", ("silu", "sigmoid"), "silu")
    config = Qwen4ExpConfig(
        vocabulary_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        max_position=fields.integer("max_position_embeddings"),
        eps=attention.eps,
        ties_embeddings=fields.flag("tie_word_embeddings", False),
        end_of_text_ids=read_end_of_text_ids(fields),
        layer_is_attention=layer_is_attention,
        attention=attention,
        indexer=_read_indexer(fields, rotary),
        rotary=rotary,
        delta_net=replace(read_delta_net(fields), gate_activation=gate_activation),
        moe=_read_moe(fields),
        expert_width=fields.integer("moe_intermediate_size"),
        shared_width=fields.integer("shared_expert_intermediate_size"),
        streams=fields.integer("hc_count", minimum=2),
        low_rank=fields.integer("hc_lowrank"),
        ngrams=_read_ngrams(fields, layer_is_attention),
        has_mtp=fields.only("mtp_num_hidden_layers", (0, 1), 0) == 1,
    )
    fields.refuse_unknown()
    return config


def _read_moe(fields: ConfigFields) -> MoeShape:
    experts, per_token = fields.integer("num_experts"), fields.integer("num_experts_per_tok")
    if per_token > experts:
        raise fields.refusal("num_experts_per_tok", per_token, f"it must be <= num_experts = {experts}")
    return MoeShape(experts, per_token, fields.flag("norm_topk_prob", True))


def _read_indexer(fields: ConfigFields, rotary: RotaryFields) -> IndexerShape:
    fields.only("indexer_kv_heads", (1,))
    shape = IndexerShape(
        heads=fields.integer("indexer_n_heads"),
        head_dim=fields.integer("indexer_head_dim"),
        budget=fields.integer("indexer_budget"),
        ratio=fields.integer("indexer_compress_ratio"),
        eps=fields.number("rms_norm_eps", 1e-6),
    )
    require_divisible(fields, "indexer_budget", shape.budget, "indexer_compress_ratio", shape.ratio)
    if shape.head_dim < rotary.rotary_dim:
        raise fields.refusal(
            "indexer_head_dim", shape.head_dim, f"it must hold the rotary part of a head = {rotary.rotary_dim} values"
        )
    return shape


def _read_ngrams(fields: ConfigFields, layer_is_attention: tuple[bool, ...]) -> dict[int, NgramShape]:
    """The n-gram embedding of each layer in `ple_layer_ids` (layers from 1, as published)."""
    numbers = sorted(set(fields.integers("ple_layer_ids", ())))
    shape = NgramShape(
        vocabulary_size=fields.integer("vocab_size"),
        ngram_size=fields.integer("ngram_size", 3, minimum=2),
        heads_per_ngram=fields.integer("heads_per_ngram", 8),
        embed_dim=fields.integer("ple_embed_dim", fields.integer("hidden_size")),
        table_size_base=fields.integer("ngram_vocab_size_base", 20_000_000, minimum=2, maximum=1 << 40),
        table_size_multiple=fields.integer("make_ngram_vocab_size_divisible_by", 128),
        seed=fields.integer("seed", 1234, minimum=0),
        end_of_text_id=0,
        conv_kernel=fields.integer("ple_conv_kernel_size", 4, minimum=1),
        streams=fields.integer("hc_count"),
        eps=fields.number("rms_norm_eps", 1e-6),
    )
    fields.ignore("split_ngram_parts")  # how many shards the files hold; tensors arrive joined
    if not numbers:
        return {}
    require_divisible(fields, "ple_embed_dim", shape.embed_dim, "(ngram_size - 1) * heads_per_ngram", shape.heads)
    for number in numbers:
        if not 1 <= number <= len(layer_is_attention):
            raise fields.refusal("ple_layer_ids", numbers, f"layers 1 to {len(layer_is_attention)} exist")
        if layer_is_attention[number - 1]:
            raise fields.refusal("ple_layer_ids", numbers, f"layer {number} is not a linear_attention layer")
    ends = read_end_of_text_ids(fields)
    if not ends:
        raise fields.refusal("eos_token_id", None, "an n-gram embedding needs a token id or a list of token ids")
    return {
        number - 1: replace(shape, module_index=index, end_of_text_id=ends[0]) for index, number in enumerate(numbers)
    }


def expected_tensors(config: Qwen4ExpConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this config has: canonical name -> shape; `mtp.*` only if the config has it."""
    hidden, wide = config.hidden_size, config.stream_width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocabulary_size, hidden)}
    if not config.ties_embeddings:
        shapes["lm_head.weight"] = (config.vocabulary_size, hidden)
    shapes |= _residual_tensors(config, "model.hyper_connection_mixer.", has_inject=False)
    for layer, is_attention in enumerate(config.layer_is_attention):
        prefix = f"model.layers.{layer}."
        shapes |= _layer_tensors(config, prefix, is_attention)
        if layer in config.ngrams:
            shapes |= _ngram_tensors(config, f"{prefix}ple.", config.ngrams[layer])
    if config.has_mtp:
        shapes |= {
            "mtp.pre_fc_norm_embedding.weight": (hidden,),
            "mtp.pre_fc_norm_hidden.weight": (wide,),
            "mtp.fc_embedding.weight": (hidden, hidden),
            "mtp.fc_hidden.weight": (hidden, hidden),
        }
        shapes |= _residual_tensors(config, "mtp.hyper_connection_mixer.", has_inject=False)
        shapes |= _layer_tensors(config, "mtp.layers.0.", is_attention=True)
    return shapes


def _layer_tensors(config: Qwen4ExpConfig, prefix: str, is_attention: bool) -> dict[str, tuple[int, ...]]:
    hidden, experts = config.hidden_size, config.moe.experts
    mlp = f"{prefix}mlp."
    shapes = {
        f"{mlp}gate.weight": (experts, hidden),
        f"{mlp}experts.gate_up_proj": (experts, 2 * config.expert_width, hidden),
        f"{mlp}experts.down_proj": (experts, hidden, config.expert_width),
        f"{mlp}shared_expert.gate_proj.weight": (config.shared_width, hidden),
        f"{mlp}shared_expert.up_proj.weight": (config.shared_width, hidden),
        f"{mlp}shared_expert.down_proj.weight": (hidden, config.shared_width),
        f"{mlp}shared_expert_gate.weight": (1, hidden),
    }
    shapes |= _attention_tensors(config, f"{prefix}self_attn.") if is_attention else {}
    shapes |= _delta_net_tensors(config, f"{prefix}linear_attn.") if not is_attention else {}
    shapes |= _residual_tensors(config, f"{prefix}attn_hyper_connection.", has_inject=True)
    shapes |= _residual_tensors(config, f"{prefix}mlp_hyper_connection.", has_inject=True)
    return shapes


def _attention_tensors(config: Qwen4ExpConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    shape, indexer, hidden = config.attention, config.indexer, config.hidden_size
    query_width, kv_width = shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        f"{prefix}q_proj.weight": (2 * query_width, hidden),
        f"{prefix}k_proj.weight": (kv_width, hidden),
        f"{prefix}v_proj.weight": (kv_width, hidden),
        f"{prefix}o_proj.weight": (hidden, query_width),
        f"{prefix}q_norm.weight": (shape.head_dim,),
        f"{prefix}k_norm.weight": (shape.head_dim,),
        f"{prefix}indexer.index_qk_proj.weight": ((indexer.heads + 1) * indexer.head_dim, hidden),
        f"{prefix}indexer.q_layernorm.weight": (indexer.head_dim,),
        f"{prefix}indexer.k_layernorm.weight": (indexer.head_dim,),
    }


def _delta_net_tensors(config: Qwen4ExpConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    shape, hidden = config.delta_net, config.hidden_size
    return {
        f"{prefix}in_proj_qkv.weight": (shape.conv_width, hidden),
        f"{prefix}in_proj_z.weight": (shape.value_width, hidden),
        f"{prefix}in_proj_b.weight": (shape.value_heads, hidden),
        f"{prefix}in_proj_a.weight": (shape.value_heads, hidden),
        f"{prefix}conv1d.weight": (shape.conv_width, 1, shape.conv_kernel),
        f"{prefix}A_log": (shape.value_heads,),
        f"{prefix}dt_bias": (shape.value_heads,),
        f"{prefix}norm.weight": (shape.value_dim,),
        f"{prefix}out_proj.weight": (hidden, shape.value_width),
    }


def _residual_tensors(config: Qwen4ExpConfig, prefix: str, has_inject: bool) -> dict[str, tuple[int, ...]]:
    wide = config.stream_width
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}hc_norm.weight": (wide,),
        f"{prefix}input_mix_weight_down.weight": (config.low_rank, wide),
        f"{prefix}input_mix_weight_up.weight": (wide, config.low_rank),
    }
    if has_inject:
        shapes[f"{prefix}block_inject_weight.weight"] = (config.streams, wide)
    return shapes


def _ngram_tensors(config: Qwen4ExpConfig, prefix: str, shape: NgramShape) -> dict[str, tuple[int, ...]]:
    hidden, wide = config.hidden_size, config.stream_width
    return {
        f"{prefix}ple_embedding.ngram_embedding.weight": (shape.table_rows, shape.embed_dim // shape.heads),
        f"{prefix}key_proj.weight": (wide, shape.embed_dim),
        f"{prefix}value_proj.weight": (hidden, shape.embed_dim),
        f"{prefix}norm_key.weight": (wide,),
        f"{prefix}norm_query.weight": (wide,),
        f"{prefix}norm_conv.weight": (wide,),
        f"{prefix}conv1d.weight": (wide, 1, shape.conv_kernel),
    }
