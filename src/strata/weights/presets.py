"""config.json of each family, as its release publishes it and in a size of a few megabytes, and how to change it.

Knows fields and figures of releases; knows no tensor. What a field means is the family's business.
"""

import copy
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strata.errors import SettingsError
from strata.weights.synthetic import PublishedStyle

_NESTED, _FLAT = "model.language_model.", "model."

# How each family's bf16 release lays its tensors out; FP8 releases of all four publish experts one by one.
STYLES: dict[str, PublishedStyle] = {
    "qwen4_exp": PublishedStyle(prefix=_NESTED, experts_are_packed=True),
    "qwen3_5_moe": PublishedStyle(prefix=_NESTED, experts_are_packed=True),
    "qwen3_next": PublishedStyle(prefix=_FLAT, experts_are_packed=False),
    "qwen3_moe": PublishedStyle(prefix=_FLAT, experts_are_packed=False, norms_are_offsets=False),
    "llama": PublishedStyle(prefix=_FLAT, experts_are_packed=False, norms_are_offsets=False),
}

_COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_DELTA_NET = {
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_ROPE_SECTIONS = {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default"}
_VISION_IDS = {
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
}

_PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen4_exp": {
        **_COMMON, **_DELTA_NET,
        "model_type": "qwen4_exp_text", "eos_token_id": 248044, "vocab_size": 248320,
        "hidden_size": 2560, "num_hidden_layers": 48, "max_position_embeddings": 262144,
        "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256, "linear_num_value_heads": 48,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640, "norm_topk_prob": True, "output_gate_type": "sigmoid",
        "hc_count": 4, "hc_lowrank": 320,
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3,
        "heads_per_ngram": 8, "ngram_vocab_size_base": 20_000_000, "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 512, "seed": 1234,
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {**_ROPE_SECTIONS, "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
    },
    "qwen3_5_moe": {
        **_COMMON, **_DELTA_NET,
        "model_type": "qwen3_5_moe_text", "eos_token_id": 248044, "vocab_size": 248320,
        "hidden_size": 2048, "num_hidden_layers": 40, "max_position_embeddings": 262144, "attn_output_gate": True,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {**_ROPE_SECTIONS, "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
    },
    "qwen3_next": {
        **_COMMON, **_DELTA_NET,
        "model_type": "qwen3_next", "bos_token_id": 151643, "eos_token_id": 151645, "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48, "max_position_embeddings": 262144,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "norm_topk_prob": True,
        "rope_theta": 10_000_000, "partial_rotary_factor": 0.25,
    },
    "qwen3_moe": {
        **_COMMON,
        "model_type": "qwen3_moe", "bos_token_id": 151643, "eos_token_id": 151645, "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "max_position_embeddings": 40960,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "norm_topk_prob": True, "rope_theta": 1_000_000, "use_sliding_window": False,
    },
    "llama": {  # SmolLM2-135M
        **_COMMON,
        "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 49152,
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "max_position_embeddings": 8192,
        "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 100_000,
        "tie_word_embeddings": True, "mlp_bias": False,
    },
}  # fmt: skip

# The vocabulary is that of the tokenizer that ships with Strata, so that a tiny model can be talked to.
_TINY_SHARED: dict[str, Any] = {
    "vocab_size": 8192, "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None, "tie_word_embeddings": True,
    "hidden_size": 64, "num_hidden_layers": 4, "max_position_embeddings": 4096,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
    "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
}  # fmt: skip
_TINY_DELTA_NET: dict[str, Any] = {
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 32,
}  # fmt: skip
_TINY_ROPE = {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default"}
_TINY: dict[str, dict[str, Any]] = {
    "qwen4_exp": {
        **_TINY_SHARED, **_TINY_DELTA_NET,
        "hc_lowrank": 16, "indexer_n_heads": 2, "indexer_head_dim": 16, "indexer_budget": 64,
        "ple_embed_dim": 64, "heads_per_ngram": 2, "ngram_vocab_size_base": 500,
        "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 3,
        "rope_parameters": {**_TINY_ROPE, "rope_theta": 10_000, "partial_rotary_factor": 0.25},
    },
    "qwen3_5_moe": {
        **_TINY_SHARED, **_TINY_DELTA_NET,
        "rope_parameters": {**_TINY_ROPE, "rope_theta": 10_000, "partial_rotary_factor": 0.25},
    },
    "qwen3_next": {**_TINY_SHARED, **_TINY_DELTA_NET, "intermediate_size": 96},
    "qwen3_moe": {**_TINY_SHARED, "intermediate_size": 96},
    "llama": {**{name: value for name, value in _TINY_SHARED.items() if "expert" not in name and "moe" not in name},
              "intermediate_size": 96},
}  # fmt: skip

PRESETS = ("tiny", "published")
_ARCHITECTURES = {
    "qwen4_exp": "Qwen4ExpForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "llama": "LlamaForCausalLM",
}


def preset_config(family: str, preset: str) -> dict[str, Any]:
    """A fresh config.json of a family in one of the PRESETS. Raises SettingsError for a name that does not exist."""
    if family not in _PUBLISHED:
        raise SettingsError(
            f"there is no model family {family!r}{_nearest(family, _PUBLISHED)}; there are: {', '.join(_PUBLISHED)}"
        )
    if preset not in PRESETS:
        raise SettingsError(f"there is no preset {preset!r}; there are: {', '.join(PRESETS)}")
    text = copy.deepcopy({**_PUBLISHED[family], **(_TINY[family] if preset == "tiny" else {})})
    if STYLES[family].prefix == _FLAT:
        return {"architectures": [_ARCHITECTURES[family]], **text}
    ids = _VISION_IDS if preset == "published" else {}
    return {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        **ids,
    }


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The object that holds the text model's fields: `text_config`, or the whole config."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def set_layers(config: dict[str, Any], layers: int) -> None:
    """Give the config another number of layers; lists of layers are cut, or go on as their pattern does."""
    text = text_part(config)
    types = text.get("layer_types")
    if isinstance(types, list) and types:
        period = text.get("full_attention_interval", 4)
        pattern = types[:period] if 0 < period <= len(types) else types
        text["layer_types"] = [*types, *(pattern[i % len(pattern)] for i in range(len(types), layers))][:layers]
    for name, first in (("ple_layer_ids", 1), ("mlp_only_layers", 0)):
        if isinstance(text.get(name), list):
            text[name] = [layer for layer in text[name] if layer - first < layers]
    text["num_hidden_layers"] = layers


def set_fields(config: dict[str, Any], assignments: Sequence[str]) -> None:
    """Apply `field=value` assignments to the text model's fields; a value is JSON, or else text.

    Dots reach into objects: `rope_parameters.rope_theta=10000`. Raises SettingsError for anything else; whether a
    field exists and a value works is the family's business.
    """
    text = text_part(config)
    for assignment in assignments:
        path, separator, written = assignment.partition("=")
        if not separator or not path:
            raise SettingsError(f"--set {assignment!r} is not of the form field=value, as in hidden_size=512")
        try:
            value = json.loads(written)
        except ValueError:
            value = written
        *outer, name = path.split(".")
        holder = text
        for step in outer:
            if not isinstance(holder.get(step), dict):
                raise SettingsError(f"--set {assignment!r}: config.json has no object {step}{_nearest(step, holder)}")
            holder = holder[step]
        if path == "num_hidden_layers" and isinstance(value, int) and value > 0:
            set_layers(config, value)
        holder[name] = value
        if holder is text and name in config:
            config[name] = value  # tie_word_embeddings stands in both places


def style_of(family: str, config: Mapping[str, Any], *, fp8_block: tuple[int, int] | None) -> PublishedStyle:
    """How a model of this family and config is laid out; block FP8 publishes experts one by one."""
    text = text_part(dict(config))
    prefix = _NESTED if "text_config" in config else _FLAT
    style = replace(STYLES[family], prefix=prefix, ngram_shards=text.get("split_ngram_parts") or 1)
    return style if fp8_block is None else replace(style, fp8_block=fp8_block, experts_are_packed=False)


def quantization_fields(block: tuple[int, int]) -> dict[str, Any]:
    """`quantization_config` of a block-FP8 release."""
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": list(block)}


def _nearest(word: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
