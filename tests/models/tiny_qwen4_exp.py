"""A tiny random `qwen4_exp` with every part at work, for tests of the model's contract. Knows no test.

Widths are multiples of 32, so that elementwise functions have no tails; the indexer's budget is exceeded after 27 rows.
"""

from functools import cache
from typing import Any

import torch

from strata.models import qwen4_exp
from strata.models.base import LogitRows, Segment
from strata.models.weights import TensorWeights
from strata.weights.source import MemorySource

END_OF_TEXT = 5
VOCABULARY = 96


def tiny_config(**changes: Any) -> dict[str, Any]:
    """config.json of the tiny model."""
    return {
        "model_type": "qwen4_exp_text",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "hc_count": 4,
        "hc_lowrank": 32,
        "ple_layer_ids": [1, 3],
        "ple_embed_dim": 32,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 61,
        "make_ngram_vocab_size_divisible_by": 8,
        "seed": 9,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 24,
        "indexer_compress_ratio": 4,
        "eos_token_id": END_OF_TEXT,
        "mtp_num_hidden_layers": 1,
        **changes,
    }


@cache
def tiny_tensors() -> dict[str, torch.Tensor]:
    """Random weights that keep activations of order 1."""
    generator = torch.Generator().manual_seed(11)
    tensors = {}
    for name, shape in qwen4_exp.expected_tensors(qwen4_exp.parse_config(tiny_config())).items():
        normal = torch.randn(shape, generator=generator)
        tensors[name] = normal * (0.3 if len(shape) == 1 or "embed" in name else shape[-1] ** -0.5)
    return tensors


@cache
def tiny_model(dtype: torch.dtype = torch.float32) -> qwen4_exp.Qwen4Exp:
    """The model; its states are the caller's."""
    return qwen4_exp.build(qwen4_exp.parse_config(tiny_config()), TensorWeights(MemorySource(tiny_tensors()), dtype))


def tiny_text(rows: int, seed: int = 0) -> torch.Tensor:
    """Random tokens with an end of text about every 40 rows."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    text[torch.rand(rows, generator=generator) < 0.025] = END_OF_TEXT
    return text


def read_in_pieces(model: Any, text: torch.Tensor, cuts: list[int]) -> tuple[torch.Tensor, Any]:
    """All logits [rows, vocabulary] of the text read in pieces that end at `cuts`, and the state."""
    state, start, logits = model.new_state(), 0, []
    for stop in [*cuts, len(text)]:
        logits.append(model.read([Segment(state, text[start:stop])], LogitRows.ALL).logits)
        start = stop
    return torch.cat(logits), state


def decode_one_by_one(model: Any, state: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [tokens, vocabulary] of windows of one row, each committed."""
    logits = []
    for token in tokens.split(1):
        window = model.window([Segment(state, token)])
        model.commit(window, [1])
        logits.append(window.output.logits)
    return torch.cat(logits)
