"""config.json of qwen4_exp: what is published is read, what is not supported is refused by name."""

from typing import Any

import pytest

from strata.errors import ConfigError
from strata.models.qwen4_exp import expected_tensors, parse_config
from tests.models.tiny_qwen4_exp import tiny_config

PUBLISHED_TEXT = {
    "model_type": "qwen4_exp_text", "vocab_size": 248320, "hidden_size": 2560, "num_hidden_layers": 48,
    "full_attention_interval": 4, "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256,
    "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                        "mrope_section": [11, 11, 10], "mrope_interleaved": True},
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640, "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True,
    "hc_count": 4, "hc_lowrank": 320, "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4,
    "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000, "split_ngram_parts": 512, "seed": 1234,
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
    "indexer_compress_ratio": 4, "output_gate_type": "sigmoid", "eos_token_id": [248046, 248044],
    "mtp_num_hidden_layers": 1, "use_cache": True, "dtype": "bfloat16", "router_aux_loss_coef": 0.001,
}  # fmt: skip
PUBLISHED = {
    "model_type": "qwen4_exp", "architectures": ["Qwen4ExpForConditionalGeneration"], "text_config": PUBLISHED_TEXT,
    "vision_config": {"depth": 27}, "image_token_id": 248056, "tie_word_embeddings": False,
}  # fmt: skip


def test_published_config_gives_the_published_sizes() -> None:
    config = parse_config(PUBLISHED)
    assert config.num_layers == 48 and sum(config.layer_is_attention) == 12
    assert config.rotary.rotary_dim == 64 and config.delta_net.gate_activation == "sigmoid"
    assert config.ngrams[1].end_of_text_id == 248046 and list(config.ngrams) == [1]
    shapes = expected_tensors(config)
    main = {name: shape for name, shape in shapes.items() if not name.startswith("mtp.")}
    sizes = {name: _numel(shape) for name, shape in main.items()}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    table = sum(size for name, size in sizes.items() if "ngram_embedding" in name)
    assert round(experts / 1e9, 1) == 120.8 and round(table / 1e9, 1) == 51.2
    assert 4.0e9 < sum(sizes.values()) - experts - table < 4.6e9 + 2 * 248320 * 2560
    assert shapes["mtp.layers.0.mlp.experts.gate_up_proj"] == (512, 1280, 2560)


def _numel(shape: tuple[int, ...]) -> int:
    return _numel(shape[1:]) * shape[0] if shape else 1


def test_both_names_of_indexed_layers_and_the_interval_mean_the_same() -> None:
    kinds = ["linear_attention", "full_attention"] * 2
    renamed = [kind.replace("full", "indexed") for kind in kinds]
    by_interval = tiny_config(full_attention_interval=2)
    del by_interval["layer_types"]
    assert parse_config(tiny_config(layer_types=renamed)) == parse_config(tiny_config(layer_types=kinds))
    assert parse_config(by_interval) == parse_config(tiny_config())


def test_no_mtp_no_mtp_tensors() -> None:
    config = tiny_config()
    del config["mtp_num_hidden_layers"]
    assert not any(name.startswith("mtp.") for name in expected_tensors(parse_config(config)))


ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"model_type": "qwen5"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = true"),
        ({"output_gate_type": "tanh"}, "output_gate_type = 'tanh'"),
        ({"rope_parameters": ROPE | {"rope_type": "yarn"}}, "rope_type = 'yarn'"),
        ({"rope_parameters": ROPE | {"factor": 4.0}}, "factor = 4.0"),
        ({"rope_parameters": ROPE | {"partial_rotary_factor": 0.2}}, "partial_rotary_factor"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_attention"),
        ({"num_attention_heads": 3}, "num_attention_heads = 3"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads = 3"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok = 9"),
        ({"hc_count": 1}, "hc_count = 1"),
        ({"num_hidden_layers": 10**12, "layer_types": None}, "num_hidden_layers = 1000000000000"),
        ({"ngram_vocab_size_base": 10**30}, "ngram_vocab_size_base = 1000"),
        ({"hc_lowrank": 0}, "hc_lowrank = 0"),
        ({"indexer_budget": None}, "no field indexer_budget"),
        ({"indexer_budget": 26}, "indexer_budget = 26"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads = 2"),
        ({"indexer_head_dim": 6}, "indexer_head_dim = 6"),
        ({"ple_layer_ids": [2]}, "layer 2 is not a linear_attention layer"),
        ({"ple_layer_ids": [9]}, r"ple_layer_ids = \[9\]"),
        ({"ple_embed_dim": 30}, "ple_embed_dim = 30"),
        ({"eos_token_id": None}, "eos_token_id = null"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers = 2"),
        ({"hidden_size": "32"}, "hidden_size = '32'"),
        ({"logit_softcap": 30.0}, "logit_softcap = 30.0"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(tiny_config(**changes))


def test_harmless_fields_are_accepted() -> None:
    harmless = {"use_cache": False, "attention_dropout": 0.1, "initializer_range": 0.02, "transformers_version": "5.24"}
    assert parse_config(tiny_config(**harmless)) == parse_config(tiny_config())
