"""Random tiny configs of the families, as config.json writes them, with a text to read.

Knows which sizes are worth trying (odd ones, more rows than the indexer's budget); knows no model code.
"""

import random
from dataclasses import dataclass
from typing import Any

FAMILIES = ("qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe", "llama")
LONG_SEED = 15  # every 16th case has more rows than attention and the indexer take at a time (512 cells, 512 blocks)


@dataclass(frozen=True)
class Case:
    """One random model and one text."""

    family: str
    seed: int
    config: dict[str, Any]  # what config.json holds
    token_ids: list[int]

    @property
    def text_config(self) -> dict[str, Any]:
        """The part of the config that describes the text model."""
        inner = self.config.get("text_config", self.config)
        assert isinstance(inner, dict)
        return inner

    @property
    def name(self) -> str:
        return f"{self.family}-{self.seed}"


def random_case(family: str, seed: int) -> Case:
    """The same case for the same family and seed, on every machine."""
    rng = random.Random(f"{family}/{seed}")
    config = _BUILDERS[family](rng)
    text = config.get("text_config", config)
    num_rows = 1100 if seed % 16 == LONG_SEED else rng.choice((19, 47, 65, 90, 131, 150, 530))
    token_ids = [rng.randrange(text["vocab_size"]) for _ in range(num_rows)]
    for _ in range(rng.randrange(1, 4)):  # end-of-text inside
        token_ids[rng.randrange(num_rows)] = text["eos_token_id"]
    return Case(family, seed, config, token_ids)


def _shared(rng: random.Random) -> dict[str, Any]:
    kv_heads = rng.choice((1, 2, 3))
    num_experts = rng.choice((5, 7, 8, 11, 16))
    vocab_size = rng.randrange(67, 140)
    return {
        "vocab_size": vocab_size,
        "hidden_size": rng.choice((24, 33, 40, 51)),
        "num_hidden_layers": rng.choice((2, 3, 4)),
        "num_attention_heads": kv_heads * rng.choice((1, 2, 3)),
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": rng.choice((1e-6, 1e-5)),
        "tie_word_embeddings": rng.random() < 0.5,
        "attention_bias": False,
        "moe_intermediate_size": rng.choice((7, 16, 21)),
        "num_experts_per_tok": rng.choice((1, 2, 3, 5)),
        "num_experts": num_experts,
        "eos_token_id": rng.randrange(vocab_size),
    }


def _mixed(rng: random.Random) -> dict[str, Any]:
    """Fields of the families that mix delta-net and attention layers."""
    key_heads = rng.choice((1, 2, 3))
    head_dim, factor = rng.choice(((16, 0.25), (8, 0.5), (24, 0.25), (12, 1.0)))
    config = _shared(rng) | {
        "head_dim": head_dim,
        "linear_conv_kernel_dim": rng.choice((2, 3, 4)),
        "linear_key_head_dim": rng.choice((5, 8, 16)),
        "linear_value_head_dim": rng.choice((7, 8, 12)),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * rng.choice((1, 2, 3)),
        "shared_expert_intermediate_size": rng.choice((9, 16)),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": rng.choice((1e4, 1e6)),
            "partial_rotary_factor": factor,
        },
    }
    if rng.random() < 0.5:
        config["full_attention_interval"] = rng.choice((2, 3))
        config["num_hidden_layers"] = 4
    else:
        layers = [rng.choice(("linear_attention", "full_attention")) for _ in range(config["num_hidden_layers"])]
        layers[0], layers[-1] = "linear_attention", "full_attention"
        config["layer_types"] = layers
    return config


def _some_dense_layers(rng: random.Random, config: dict[str, Any]) -> None:
    """Half of the cases have dense layers, by the one field or the other."""
    config["intermediate_size"] = rng.choice((18, 29))
    config["norm_topk_prob"] = rng.random() < 0.5
    if rng.random() < 0.25:
        config["mlp_only_layers"] = [rng.randrange(config["num_hidden_layers"])]
    elif rng.random() < 0.33:
        config["decoder_sparse_step"] = 2


def _qwen3_moe(rng: random.Random) -> dict[str, Any]:
    config = _shared(rng) | {"model_type": "qwen3_moe", "head_dim": rng.choice((6, 16, 18))}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": rng.choice((1e4, 1e6))}
    _some_dense_layers(rng, config)
    return config


def _llama(rng: random.Random) -> dict[str, Any]:
    config = {name: value for name, value in _shared(rng).items() if "experts" not in name and "moe" not in name}
    theta = rng.choice((1e4, 1e5))
    is_flat = rng.random() < 0.5
    rope: dict[str, Any] = {"rope_theta": theta} if is_flat else {"rope_parameters": {"rope_type": "default"}}
    rope.get("rope_parameters", {}).update(rope_theta=theta)
    config |= {"model_type": "llama", "intermediate_size": rng.choice((18, 29, 64)), "mlp_bias": False} | rope
    config["hidden_size"] = config["num_attention_heads"] * rng.choice((6, 10, 16))
    if rng.random() < 0.5:
        config["head_dim"] = rng.choice((6, 8, 18))
    return config


def _qwen3_next(rng: random.Random) -> dict[str, Any]:
    config = _mixed(rng) | {"model_type": "qwen3_next"}
    _some_dense_layers(rng, config)
    return config


def _qwen3_5_moe(rng: random.Random) -> dict[str, Any]:
    text = _mixed(rng) | {"model_type": "qwen3_5_moe_text"}
    text["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [1, 1, 0]}
    return _nested(rng, "qwen3_5_moe", text)


def _qwen4_exp(rng: random.Random) -> dict[str, Any]:
    ngram_size, heads_per_ngram = rng.choice((2, 3, 4)), rng.choice((1, 2, 3))
    ratio = rng.choice((2, 3, 4))
    text = _mixed(rng)
    text |= {
        "model_type": "qwen4_exp_text",
        "norm_topk_prob": rng.random() < 0.7,
        "hc_count": rng.choice((2, 3, 4)),
        "hc_lowrank": rng.choice((5, 8)),
        "ple_embed_dim": (ngram_size - 1) * heads_per_ngram * rng.choice((2, 5)),
        "ple_conv_kernel_size": rng.choice((2, 4)),
        "ngram_size": ngram_size,
        "heads_per_ngram": heads_per_ngram,
        "ngram_vocab_size_base": rng.choice((50, 97)),
        "make_ngram_vocab_size_divisible_by": rng.choice((1, 8)),
        "seed": rng.randrange(10_000),
        "split_ngram_parts": 1,
        "indexer_n_heads": rng.choice((1, 2, 3)),
        "indexer_kv_heads": 1,
        "indexer_head_dim": 12 + rng.choice((0, 3, 4)),
        "indexer_budget": ratio * rng.choice((2, 4, 8)),
        "indexer_compress_ratio": ratio,
        "output_gate_type": rng.choice((None, "sigmoid", "silu")),
    }
    linear_layers = [1, 2] if "full_attention_interval" not in text else [1]
    if "layer_types" in text:
        linear_layers = [i + 1 for i, kind in enumerate(text["layer_types"]) if kind == "linear_attention"]
    text["ple_layer_ids"] = rng.choice(([], linear_layers[:1], linear_layers[-1:], linear_layers))
    text["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [1, 1, 0]}
    return _nested(rng, "qwen4_exp", text)


def _nested(rng: random.Random, outer_type: str, text: dict[str, Any]) -> dict[str, Any]:
    """Two thirds of the cases stand in `text_config` beside a vision part, as published; the rest stand alone."""
    if rng.random() < 0.33:
        return text
    return {
        "model_type": outer_type,
        "text_config": text,
        "vision_config": {"depth": 2},
        "image_token_id": 1,
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


_BUILDERS = {
    "qwen4_exp": _qwen4_exp,
    "qwen3_5_moe": _qwen3_5_moe,
    "qwen3_next": _qwen3_next,
    "qwen3_moe": _qwen3_moe,
    "llama": _llama,
}
