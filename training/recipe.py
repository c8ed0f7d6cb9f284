"""The shipped model's shape and its training stages: the numbers that decide everything else in this folder.

Knows no tensor and no file format.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PocketShape:
    """A small `qwen4_exp` with every part of the architecture at work; every matrix has K a multiple of 64."""

    vocabulary_size: int = 8192
    hidden: int = 256
    layer_kinds: str = "LLALLA"  # L: gated delta net, A: indexed attention
    num_streams: int = 4
    stream_rank: int = 64
    delta_key_heads: int = 2
    delta_value_heads: int = 4
    delta_head: int = 64
    conv_kernel: int = 4
    attention_heads: int = 4
    attention_kv_heads: int = 1
    attention_head: int = 64
    rotary: int = 16
    rope_theta: float = 1_000_000.0
    index_heads: int = 2
    index_head: int = 32
    index_ratio: int = 4
    index_budget: int = 256
    num_experts: int = 32
    experts_per_token: int = 8
    expert_width: int = 64
    shared_width: int = 64
    ngram_layer: int = 1  # zero-based
    ngram_size: int = 3
    heads_per_ngram: int = 4
    ngram_base: int = 6151
    ngram_divisor: int = 8
    ngram_width: int = 32
    ngram_seed: int = 1234
    end_of_text: int = 0
    norm_epsilon: float = 1e-6
    max_position: int = 65_536

    @property
    def ngram_heads(self) -> int:
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def ngram_embedding(self) -> int:
        return self.ngram_heads * self.ngram_width


@dataclass(frozen=True)
class Stage:
    """One stretch of training. Shares are of all training tokens; rows of a batch have `length` tokens each."""

    name: str
    share: float
    length: int
    sparse: bool  # attention over the indexer's choice, else over everything
    indexer_only: bool = False  # nothing but the indexers moves
    quantized: bool = False  # forward passes see weights as block-FP8 will hold them


STAGES = (
    Stage("dense", 0.62, 1024, sparse=False),
    Stage("indexer", 0.02, 1024, sparse=False, indexer_only=True),
    Stage("sparse", 0.26, 2048, sparse=True),
    Stage("long", 0.05, 8192, sparse=True),
    Stage("quantized", 0.05, 8192, sparse=True, quantized=True),
)


def hub_config(shape: PocketShape) -> dict[str, Any]:
    """config.json of the shipped model, as the hub publishes this family (text settings nested)."""
    kinds = {"L": "linear_attention", "A": "full_attention"}
    text = {
        "model_type": "qwen4_exp_text",
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.hidden,
        "num_hidden_layers": len(shape.layer_kinds),
        "layer_types": [kinds[kind] for kind in shape.layer_kinds],
        "num_attention_heads": shape.attention_heads,
        "num_key_value_heads": shape.attention_kv_heads,
        "head_dim": shape.attention_head,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_epsilon,
        "max_position_embeddings": shape.max_position,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape.rope_theta,
            "partial_rotary_factor": shape.rotary / shape.attention_head,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        },
        "linear_conv_kernel_dim": shape.conv_kernel,
        "linear_key_head_dim": shape.delta_head,
        "linear_value_head_dim": shape.delta_head,
        "linear_num_key_heads": shape.delta_key_heads,
        "linear_num_value_heads": shape.delta_value_heads,
        "output_gate_type": "sigmoid",
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": shape.expert_width,
        "shared_expert_intermediate_size": shape.shared_width,
        "norm_topk_prob": True,
        "hc_count": shape.num_streams,
        "hc_lowrank": shape.stream_rank,
        "ple_layer_ids": [shape.ngram_layer + 1],
        "ple_embed_dim": shape.ngram_embedding,
        "ple_conv_kernel_size": shape.conv_kernel,
        "ngram_size": shape.ngram_size,
        "heads_per_ngram": shape.heads_per_ngram,
        "ngram_vocab_size_base": shape.ngram_base,
        "make_ngram_vocab_size_divisible_by": shape.ngram_divisor,
        "split_ngram_parts": 1,
        "seed": shape.ngram_seed,
        "indexer_n_heads": shape.index_heads,
        "indexer_kv_heads": 1,
        "indexer_head_dim": shape.index_head,
        "indexer_budget": shape.index_budget,
        "indexer_compress_ratio": shape.index_ratio,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": True,
        "eos_token_id": shape.end_of_text,
        "pad_token_id": shape.end_of_text,
    }
    return {
        "model_type": "qwen4_exp",
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "text_config": text,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
