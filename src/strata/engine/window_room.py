"""What a stage's windows take on a card beside weights and state: the buffers between launches, from config alone.

Pure arithmetic, a little above what is taken (a test holds it against real stages): the plan asks before anything is
made. Knows the largest bucket and that some buffers are every bucket's own; knows no launch.
"""

from collections.abc import Mapping
from typing import Any

from strata.engine.memory_plan import Growth, Place
from strata.engine.stage import MOST_ROWS, ROW_BUCKETS
from strata.kernels.attention_rows.parts import most_parts
from strata.kernels.router import MARKS
from strata.kernels.sampler.buffers import ChoiceScratch
from strata.kernels.stream_gates import arrival_columns
from strata.models.needs import attention_layers

FLOAT_BYTES = 4
BLOCKS_BYTES = 5.25  # of a value in rows that matrices read: as it is, and in quantized blocks of 32
OWN_ROWS = sum(ROW_BUCKETS)  # of buffers that buckets do not share


def window_room(values: Mapping[str, Any], cells: int) -> Growth:
    """values: config.json of a family that runs on a device; cells: the most that a slot may have."""
    text = values.get("text_config") or values
    blocks = FLOAT_BYTES / text["indexer_compress_ratio"] if text.get("indexer_head_dim") else 0.0
    rows = MOST_ROWS * _shared_row_bytes(text) + OWN_ROWS * _own_row_bytes(text, cells)
    return Growth(
        "windows",
        Place.CARD,
        fixed=int(rows) + _scratch_bytes(text),
        per_position=FLOAT_BYTES * head_dim_of(text) + OWN_ROWS * blocks,  # rotary tables; scores of blocks
    )


def _shared_row_bytes(text: Mapping[str, Any]) -> int:
    """Of one row in the buffers that all buckets view."""
    streams = text.get("hc_count", 1) * text["hidden_size"]
    ngram_layers = len(text.get("ple_layer_ids") or ())
    is_attention = attention_layers(text)
    delta = delta_width(text) * is_attention.count(False)
    mlp = max(text.get("num_experts") or 0, 2 * (text.get("intermediate_size") or 0))
    mlp += 2 * (text.get("shared_expert_intermediate_size") or 0)
    shares = text.get("hc_lowrank", 0) + text.get("hc_count", 1)
    gates = shares + text.get("hc_count", 1) + arrival_columns(shares)  # and strengths, and counters of programs
    ngrams = (3 + ngram_layers) * streams + text["hidden_size"] if ngram_layers else 0
    values = streams + gates + 2 * text["hidden_size"] + attention_width(text) + mlp + delta + ngrams
    return FLOAT_BYTES * (values + text["vocab_size"])


def _own_row_bytes(text: Mapping[str, Any], cells: int) -> float:
    """Of one row in the buffers that every bucket has for itself."""
    hidden, heads, head_dim = text["hidden_size"], text["num_attention_heads"], head_dim_of(text)
    ranks, width = text.get("num_experts_per_tok", 0), text.get("moe_intermediate_size", 0)
    shared = text.get("shared_expert_intermediate_size") or 0
    read = text.get("hc_count", 1) * hidden + 2 * hidden + text.get("hc_lowrank", 0) + heads * head_dim
    read += delta_values(text) + text.get("ple_embed_dim", 0) + (text.get("intermediate_size") or 0)
    experts = ranks * (2 * width + hidden + 6) + shared + hidden
    sees = cells
    if text.get("indexer_head_dim"):
        sees = min(cells, text["indexer_budget"] + text["indexer_compress_ratio"])
        experts += text["indexer_n_heads"] * text["indexer_head_dim"] + text["indexer_budget"]
    attention = heads * (head_dim + most_parts(sees) * (head_dim + 2))
    return BLOCKS_BYTES * (read + ranks * width + shared) + FLOAT_BYTES * (experts + attention)


def _scratch_bytes(text: Mapping[str, Any]) -> int:
    """Of choosing tokens, and of listing what experts do."""
    scratch = ChoiceScratch.empty(OWN_ROWS, "meta")
    tensors = (scratch.winners, scratch.counts, scratch.weights, scratch.searches)
    marks = len(ROW_BUCKETS) * FLOAT_BYTES * MARKS if text.get("num_experts") else 0
    return marks + sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def attention_width(text: Mapping[str, Any]) -> int:
    """Columns of an attention layer's projections; gates and an indexer counted where there may be some."""
    cells = 2 * (text.get("num_key_value_heads") or text["num_attention_heads"]) * head_dim_of(text)
    index = (text.get("indexer_n_heads", 0) + 1) * (text.get("indexer_head_dim") or 0)
    return 2 * text["num_attention_heads"] * head_dim_of(text) + cells + index


def delta_width(text: Mapping[str, Any]) -> int:
    """Columns of a delta net's projections."""
    if "linear_num_key_heads" not in text:
        return 0
    keys = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"]
    return keys + 2 * delta_values(text) + 2 * text["linear_num_value_heads"]


def delta_values(text: Mapping[str, Any]) -> int:
    """Values of one row of a delta net, all heads together; 0 without one."""
    return text.get("linear_num_value_heads", 0) * text.get("linear_value_head_dim", 0)


def head_dim_of(text: Mapping[str, Any]) -> int:
    """Values of one attention head."""
    return int(text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"])
