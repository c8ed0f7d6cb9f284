"""The metadata of a GGUF file for a checked config: the keys with which llama.cpp loads it.

Knows keys, their number types and what the format cannot say; knows no tensor.
"""

from itertools import accumulate
from typing import Any

from strata.errors import ConfigError
from strata.models.decoder_config import DecoderConfig
from strata.models.qwen4_exp_config import Qwen4ExpConfig
from strata.weights.gguf_names import ARCHITECTURES, Architecture, Heads
from strata.weights.gguf_types import FILE_TYPES
from strata.weights.gguf_writer import Pair

Config = DecoderConfig | Qwen4ExpConfig


def architecture_for(config: Config) -> Architecture:
    """The architecture whose name the file has. Raises ConfigError for what the format cannot say."""
    model_type = "qwen4_exp" if isinstance(config, Qwen4ExpConfig) else config.model_type
    found = next(each for each in ARCHITECTURES if each.model_type.removesuffix("_text") == model_type)
    problem = _unsayable(config)
    if problem is not None:
        raise ConfigError(f"a GGUF file of the kind {found.name} cannot hold this model: {problem}")
    return found


def llama_cpp_problems(config: Config) -> tuple[str, ...]:
    """Why llama.cpp (0.5.0, October 2026) does not load a file of this model, which Strata loads."""
    if not isinstance(config, Qwen4ExpConfig):
        return ()
    return tuple(
        f"warning: llama.cpp cannot load this file: ple_embed_dim = {shape.embed_dim:,} and hidden_size = "
        f"{config.hidden_size:,}; it loads a model where they are alike"
        for shape in config.ngrams.values()
        if shape.embed_dim != config.hidden_size
    )


def heads_of(config: Config) -> Heads:
    """The heads that orders of rows depend on."""
    delta = config.delta_net
    if delta is None:
        return Heads(head_dim=config.attention.head_dim)
    return Heads(delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, config.attention.head_dim)


def model_pairs(config: Config, name: str, type_name: str, rope_sections: list[int] | None) -> list[Pair]:
    """Every key but the tokenizer's. `rope_sections` are those of config.json, if it has any."""
    architecture = architecture_for(config)
    general = [
        Pair("general.architecture", "text", architecture.name),
        Pair("general.type", "text", "model"),
        Pair("general.name", "text", name),
        Pair("general.file_type", "u32", FILE_TYPES[type_name]),
        Pair("general.quantization_version", "u32", 2),
    ]
    values = [*_common(config), *_mlp(config)]
    if architecture.name in ("qwen4exp", "qwen35moe"):
        values.append(("rope.dimension_sections", "[i32]", _sections(rope_sections, config.rotary.rotary_dim)))
    if architecture.has_delta_net:
        values += _delta_net(config)
    if isinstance(config, Qwen4ExpConfig):
        values += _residual_and_indexer(config) + _ngrams(config)
    return general + [Pair(f"{architecture.name}.{key}", kind, value) for key, kind, value in values]


Values = list[tuple[str, str, Any]]


def _unsayable(config: Config) -> str | None:
    delta = config.delta_net
    if delta is not None and delta.key_dim != delta.value_dim:
        return f"its key heads have {delta.key_dim} values and its value heads {delta.value_dim}; they must be alike"
    if isinstance(config, DecoderConfig):
        if not all(config.mlp.layer_is_sparse) and any(config.mlp.layer_is_sparse):
            return "some layers have experts and others are dense"
        if config.mlp.moe is not None and not config.mlp.moe.normalize_weights:
            return "norm_topk_prob = false"
        return None
    if delta is not None and delta.gate_activation != "sigmoid":
        return f"output_gate_type = {delta.gate_activation}; the format always means sigmoid"
    if not config.moe.normalize_weights:
        return "norm_topk_prob = false"
    if len(config.ngrams) > 1:
        layers = [layer + 1 for layer in config.ngrams]
        return f"ple_layer_ids = {layers}: {len(layers)} n-gram layers; the format has room for one"
    return None


def _common(config: Config) -> Values:
    attention = config.attention
    return [
        ("block_count", "u32", config.num_layers),
        ("context_length", "u32", config.max_position),
        ("embedding_length", "u32", config.hidden_size),
        ("vocab_size", "u32", config.vocabulary_size),
        ("attention.head_count", "u32", attention.query_heads),
        ("attention.head_count_kv", "u32", attention.kv_heads),
        ("attention.key_length", "u32", attention.head_dim),
        ("attention.value_length", "u32", attention.head_dim),
        ("attention.layer_norm_rms_epsilon", "f32", config.eps),
        ("rope.dimension_count", "u32", config.rotary.rotary_dim),
        ("rope.freq_base", "f32", config.rotary.theta),
    ]


def _mlp(config: Config) -> Values:
    if isinstance(config, Qwen4ExpConfig):
        moe, width, shared = config.moe, config.expert_width, config.shared_width
    else:
        if config.mlp.moe is None:
            return [("feed_forward_length", "u32", config.mlp.dense_width)]
        moe, width, shared = config.mlp.moe, config.mlp.expert_width, config.mlp.shared_width or 0
    values: Values = [
        ("expert_count", "u32", moe.experts),
        ("expert_used_count", "u32", moe.experts_per_token),
        ("expert_feed_forward_length", "u32", width),
        ("feed_forward_length", "u32", width * moe.experts_per_token),
    ]
    return values + ([("expert_shared_feed_forward_length", "u32", shared)] if shared else [])


def _sections(found: list[int] | None, rotary_dim: int) -> list[int]:
    """Three sections of multimodal rope, which do not matter for text, and a fourth of 0."""
    half = rotary_dim // 2
    wanted = list(found or (half - 2 * (half // 3), half // 3, half // 3))
    return [*wanted, 0, 0, 0, 0][:4]


def _delta_net(config: Config) -> Values:
    delta = config.delta_net
    assert delta is not None
    is_attention = config.layer_is_attention if isinstance(config, Qwen4ExpConfig) else config.layer_is_full_attention
    values: Values = [
        ("ssm.conv_kernel", "u32", delta.conv_kernel),
        ("ssm.state_size", "u32", delta.key_dim),
        ("ssm.group_count", "u32", delta.key_heads),
        ("ssm.time_step_rank", "u32", delta.value_heads),
        ("ssm.inner_size", "u32", delta.value_heads * delta.value_dim),
        ("attention.recurrent_layers", "[bool]", [not each for each in is_attention]),
    ]
    interval = is_attention.index(True) + 1 if any(is_attention) else len(is_attention) + 1
    if all(each == ((index + 1) % interval == 0) for index, each in enumerate(is_attention)):
        values.append(("full_attention_interval", "u32", interval))
    return values


def _residual_and_indexer(config: Qwen4ExpConfig) -> Values:
    indexer = config.indexer
    return [
        ("hyper_connection.count", "u32", config.streams),
        ("hyper_connection.low_rank", "u32", config.low_rank),
        ("attention.indexer.head_count", "u32", indexer.heads),
        ("attention.indexer.key_length", "u32", indexer.head_dim),
        ("attention.indexer.top_k", "u32", indexer.budget),
        # A layer without its ratio would be read with dense attention, and nobody would say so.
        ("attention.compress_ratios", "[i32]", [indexer.ratio if each else 0 for each in config.layer_is_attention]),
    ]


def _ngrams(config: Qwen4ExpConfig) -> Values:
    values: Values = []
    for layer, shape in config.ngrams.items():
        offsets = list(accumulate(shape.head_sizes, initial=0))[:-1]
        values += [
            ("ple.layers", "[i32]", [layer]),
            ("ple.ngram_size", "u32", shape.ngram_size),
            ("ple.heads_per_ngram", "u32", shape.heads_per_ngram),
            ("ple.conv_kernel", "u32", shape.conv_kernel),
            ("ple.eos_token_id", "u32", shape.end_of_text_id),
            ("embedding_length_per_layer_input", "u32", shape.embed_dim // shape.heads),
            ("ple.layer_multipliers", "[u64]", list(shape.multipliers)),
            ("ple.head_offsets", "[u64]", offsets),
            ("ple.head_vocab_sizes", "[u64]", list(shape.head_sizes)),
        ]
    return values
