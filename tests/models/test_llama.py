"""`llama`: its config and its tensors. Its logits: the oracle; reading in pieces: test_qwen3_contract."""

from typing import Any

import pytest

from strata.errors import ConfigError
from strata.models import llama
from tests.oracle.configs import random_case

# config.json of SmolLM2-135M-Instruct, as published
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}


def test_a_published_config_is_understood() -> None:
    config = llama.parse_config(SMOLLM2)
    assert (config.num_layers, config.hidden_size, config.vocabulary_size) == (30, 576, 49152)
    assert (config.attention.query_heads, config.attention.kv_heads, config.attention.head_dim) == (9, 3, 64)
    assert (config.rotary.theta, config.rotary.rotary_dim, config.eps) == (100000.0, 64, 1e-5)
    assert config.end_of_text_ids == (2,)
    assert config.norm_offset == 0.0
    shapes = llama.expected_tensors(config)
    assert len(shapes) == 2 + 30 * 9
    assert sum(1 for name in shapes if "norm" in name) == 61
    assert "lm_head.weight" not in shapes
    assert shapes["model.layers.29.self_attn.k_proj.weight"] == (192, 576)
    assert "lm_head.weight" in llama.expected_tensors(llama.parse_config(SMOLLM2 | {"tie_word_embeddings": False}))


def test_random_configs_are_accepted() -> None:
    for seed in range(30):
        llama.parse_config(random_case("llama", seed).config)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_bias": True}, "attention_bias = true"),
        ({"mlp_bias": True}, "mlp_bias = true"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "type = 'linear'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_type = 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type = 'yarn'"),
        ({"num_key_value_heads": 4}, "num_attention_heads = 9"),
        ({"hidden_size": 577}, "hidden_size = 577"),
        ({"head_dim": 63}, "head_dim = 63"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"model_type": "mistral"}, "model_type = 'mistral'"),
        ({"intermediate_size": None}, "no field intermediate_size"),
        ({"vocab_size": None}, "no field vocab_size"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        llama.parse_config(SMOLLM2 | changes)
