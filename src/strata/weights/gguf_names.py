"""Which GGUF tensors hold which canonical tensor, and how their rows, columns and values differ. Both ways.

Knows names, orders and shapes of every supported architecture; opens no file and reads no value.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

Index = np.ndarray  # [n] int64: canonical row (or column) i is row index[i] of what the file holds


class Change(Enum):
    """What a file holds instead of a value w."""

    NONE = "w"
    PLUS_ONE = "1 + w"  # norms that multiply by 1 + weight
    MINUS_EXP = "-exp(w)"  # the decay of a delta net


class Order(Enum):
    """How the rows (or columns) of a file's tensor are ordered."""

    SAME = "same"
    VALUE_HEADS = "one row a value head"  # files group value heads by their number under a key head
    VALUE_ROWS = "the rows of value heads"
    BEHIND_KEYS = "queries and keys, then the rows of value heads"
    VALUE_COLUMNS = "the columns of value heads"
    BY_KIND = "all q, k, v, z"  # canonical: q, k, v and z of each key head in turn
    ROTARY_PAIRS = "the two halves of a head interleaved"


@dataclass(frozen=True)
class Rule:
    """One canonical tensor of a layer (or of the model) and the file's tensors that lie one under another in it."""

    canonical: str
    parts: tuple[str, ...]
    change: Change = Change.NONE
    order: Order = Order.SAME
    extra_axis: int | None = None  # an axis of size 1 that the file leaves out


@dataclass(frozen=True)
class Heads:
    """Head counts and sizes that orders depend on; zeros where a model has no delta net."""

    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    head_dim: int = 0  # of the attention


@dataclass(frozen=True)
class Architecture:
    """One value of `general.architecture`: the model_type it means, and its rules."""

    name: str
    model_type: str
    model_rules: tuple[Rule, ...]
    layer_rules: tuple[Rule, ...]  # names without `model.layers.N.` and `blk.N.`; an earlier rule wins, and is written
    has_delta_net: bool


def _plain(canonical: str, part: str, change: Change = Change.NONE) -> Rule:
    return Rule(f"{canonical}.weight", (f"{part}.weight",), change)


def _norms(change: Change, *pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple(_plain(canonical, part, change) for canonical, part in pairs)


_EMBEDDINGS = (_plain("model.embed_tokens", "token_embd"), _plain("lm_head", "output"))
_EXPERTS = (
    _plain("mlp.gate", "ffn_gate_inp"),
    Rule("mlp.experts.gate_up_proj", ("ffn_gate_exps.weight", "ffn_up_exps.weight")),
    Rule("mlp.experts.gate_up_proj", ("ffn_gate_up_exps.weight",)),
    Rule("mlp.experts.down_proj", ("ffn_down_exps.weight",)),
)
_SHARED_EXPERT = (
    *(_plain(f"mlp.shared_expert.{part}_proj", f"ffn_{part}_shexp") for part in ("gate", "up", "down")),
    Rule("mlp.shared_expert_gate.weight", ("ffn_gate_inp_shexp.weight",), extra_axis=0),
)
_DENSE_MLP = tuple(_plain(f"mlp.{part}_proj", f"ffn_{part}") for part in ("gate", "up", "down"))
_ATTENTION = (
    *(_plain(f"self_attn.{part}_proj", f"attn_{part}") for part in ("q", "k", "v")),
    _plain("self_attn.o_proj", "attn_output"),
)
_HEAD_NORMS = (("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"))
_LAYER_NORMS = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm"))


def _delta_net(*, is_grouped: bool) -> tuple[Rule, ...]:
    """The delta net's small tensors and its output; `is_grouped`: value heads keep their canonical order."""

    def order(wanted: Order) -> Order:
        return Order.SAME if is_grouped else wanted

    prefix = "linear_attn."
    return (
        Rule(f"{prefix}conv1d.weight", ("ssm_conv1d.weight",), order=order(Order.BEHIND_KEYS), extra_axis=1),
        Rule(f"{prefix}A_log", ("ssm_a",), Change.MINUS_EXP, order(Order.VALUE_HEADS)),
        Rule(f"{prefix}dt_bias", ("ssm_dt.bias",), order=order(Order.VALUE_HEADS)),
        _plain(f"{prefix}norm", "ssm_norm"),
        Rule(f"{prefix}out_proj.weight", ("ssm_out.weight",), order=order(Order.VALUE_COLUMNS)),
    )


_TILED_DELTA_NET = (
    Rule("linear_attn.in_proj_qkv.weight", ("attn_qkv.weight",), order=Order.BEHIND_KEYS),
    Rule("linear_attn.in_proj_z.weight", ("attn_gate.weight",), order=Order.VALUE_ROWS),
    Rule("linear_attn.in_proj_b.weight", ("ssm_beta.weight",), order=Order.VALUE_HEADS),
    Rule("linear_attn.in_proj_a.weight", ("ssm_alpha.weight",), order=Order.VALUE_HEADS),
    *_delta_net(is_grouped=False),
)
_INTERLEAVED_DELTA_NET = (
    Rule("linear_attn.in_proj_qkvz.weight", ("attn_qkv.weight", "attn_gate.weight"), order=Order.BY_KIND),
    Rule("linear_attn.in_proj_qkvz.weight", ("ssm_in.weight",)),  # older files
    Rule("linear_attn.in_proj_ba.weight", ("ssm_ba.weight",)),
    *_delta_net(is_grouped=True),
)


def _residual(canonical: str, part: str, *, has_inject: bool) -> tuple[Rule, ...]:
    rules = (
        _plain(f"{canonical}.hc_norm", f"{part}_norm", Change.PLUS_ONE),
        _plain(f"{canonical}.input_mix_weight_down", f"{part}_down"),
        _plain(f"{canonical}.input_mix_weight_up", f"{part}_up"),
    )
    return (*rules, _plain(f"{canonical}.block_inject_weight", f"{part}_inject")) if has_inject else rules


_QWEN4_LAYER = (
    *_residual("attn_hyper_connection", "hc_attn", has_inject=True),
    *_residual("mlp_hyper_connection", "hc_ffn", has_inject=True),
    *_ATTENTION,
    *_norms(Change.PLUS_ONE, *_HEAD_NORMS),
    Rule("self_attn.indexer.index_qk_proj.weight", ("indexer.q_proj.weight", "indexer.k_proj.weight")),
    _plain("self_attn.indexer.q_layernorm", "indexer.q_norm", Change.PLUS_ONE),
    _plain("self_attn.indexer.k_layernorm", "indexer.k_norm", Change.PLUS_ONE),
    *_TILED_DELTA_NET,
    *_EXPERTS,
    *_SHARED_EXPERT,
    _plain("ple.key_proj", "ple_key"),
    _plain("ple.value_proj", "ple_value"),
    *(_plain(f"ple.norm_{what}", f"ple_norm_{what}", Change.PLUS_ONE) for what in ("key", "query", "conv")),
    Rule("ple.conv1d.weight", ("ple_conv1d.weight",), extra_axis=1),
)
_QWEN_NORMS = _norms(Change.PLUS_ONE, *_LAYER_NORMS, *_HEAD_NORMS)
NGRAM_TABLE = "per_layer_token_embd.weight"

ARCHITECTURES = (
    Architecture(
        "qwen4exp",
        "qwen4_exp_text",
        (*_EMBEDDINGS, *_residual("model.hyper_connection_mixer", "output_hc", has_inject=False)),
        _QWEN4_LAYER,
        has_delta_net=True,
    ),
    Architecture(
        "qwen35moe",
        "qwen3_5_moe_text",
        (*_EMBEDDINGS, _plain("model.norm", "output_norm", Change.PLUS_ONE)),
        (*_QWEN_NORMS, *_ATTENTION, *_TILED_DELTA_NET, *_EXPERTS, *_SHARED_EXPERT),
        has_delta_net=True,
    ),
    Architecture(
        "qwen3next",
        "qwen3_next",
        (*_EMBEDDINGS, _plain("model.norm", "output_norm", Change.PLUS_ONE)),
        (*_QWEN_NORMS, *_ATTENTION, *_INTERLEAVED_DELTA_NET, *_EXPERTS, *_SHARED_EXPERT),
        has_delta_net=True,
    ),
    Architecture(
        "qwen3moe",
        "qwen3_moe",
        (*_EMBEDDINGS, _plain("model.norm", "output_norm")),
        (
            *_norms(Change.NONE, ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")),
            *_norms(Change.NONE, *_HEAD_NORMS),
            *_ATTENTION,
            *_EXPERTS,
        ),
        has_delta_net=False,
    ),
    Architecture(
        "llama",
        "llama",
        (*_EMBEDDINGS, _plain("model.norm", "output_norm")),
        (
            *_norms(Change.NONE, ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")),
            Rule("self_attn.q_proj.weight", ("attn_q.weight",), order=Order.ROTARY_PAIRS),
            Rule("self_attn.k_proj.weight", ("attn_k.weight",), order=Order.ROTARY_PAIRS),
            *_ATTENTION[2:],
            *_DENSE_MLP,
        ),
        has_delta_net=False,
    ),
)


def find_architecture(name: str) -> Architecture | None:
    """The architecture that a file calls `name`."""
    return next((found for found in ARCHITECTURES if found.name == name), None)


def rules_of(architecture: Architecture, layers: int, ngram_layer: int | None) -> Iterable[Rule]:
    """Every rule with full names, layer by layer; `ngram_layer` is the one whose table the file holds."""
    yield from architecture.model_rules
    for layer in range(layers):
        for rule in architecture.layer_rules:
            parts = tuple(f"blk.{layer}.{part}" for part in rule.parts)
            yield Rule(f"model.layers.{layer}.{rule.canonical}", parts, rule.change, rule.order, rule.extra_axis)
    if ngram_layer is not None:
        yield Rule(f"model.layers.{ngram_layer}.ple.ple_embedding.ngram_embedding.weight", (NGRAM_TABLE,))


def find_rules(rules: Iterable[Rule], held: Mapping[str, object]) -> dict[str, Rule]:
    """By canonical name: the first rule whose parts a file holds."""
    found: dict[str, Rule] = {}
    for rule in rules:
        if rule.canonical not in found and all(part in held for part in rule.parts):
            found[rule.canonical] = rule
    return found


def row_index(order: Order, heads: Heads, rows: int) -> Index | None:
    """Where the canonical rows stand among `rows` rows of the file; None if the order is the same.

    Raises ValueError if the heads do not make up that many rows.
    """
    if order in (Order.SAME, Order.VALUE_COLUMNS) or not rows:
        return None
    if order is Order.ROTARY_PAIRS:
        _require(rows % heads.head_dim == 0 and heads.head_dim % 2 == 0, rows)
        pairs = np.arange(rows).reshape(-1, heads.head_dim // 2, 2)
        return pairs.swapaxes(1, 2).reshape(-1)
    key_rows = 2 * heads.key_heads * heads.key_dim
    value_rows = heads.value_heads * heads.value_dim
    if order is Order.BY_KIND:
        _require(rows == key_rows + 2 * value_rows, rows)
        return _by_key_head(heads)
    if order is Order.BEHIND_KEYS:
        _require(rows == key_rows + value_rows, rows)
        return np.concatenate((np.arange(key_rows), key_rows + value_index(heads, heads.value_dim)))
    size = 1 if order is Order.VALUE_HEADS else heads.value_dim
    _require(rows == heads.value_heads * size, rows)
    return value_index(heads, size)


def value_index(heads: Heads, size: int) -> Index:
    """Where the canonical rows of value heads of `size` rows stand: files put the first value head of every key
    head first, then the second of every one."""
    tiled = np.arange(heads.value_heads).reshape(-1, heads.key_heads).T.reshape(-1)
    return (tiled[:, None] * size + np.arange(size)).reshape(-1)


def _by_key_head(heads: Heads) -> Index:
    key_width, value_width = heads.key_heads * heads.key_dim, heads.value_heads * heads.value_dim
    parts, begin = [], 0
    for width in (key_width, key_width, value_width, value_width):
        parts.append(np.arange(begin, begin + width).reshape(heads.key_heads, -1))
        begin += width
    return np.concatenate(parts, axis=1).reshape(-1)


def _require(fits: bool, rows: int) -> None:
    if not fits:
        raise ValueError(f"{rows:,} rows do not fit the heads that the metadata names")
