"""From the metadata of a GGUF file to the fields of a config.json: what a model family's own reading takes.

Knows keys and what published files leave out; what a family supports is the family's business.
"""

from typing import Any

import numpy as np

from strata.errors import ConfigError, WeightFileError
from strata.weights.gguf import Gguf
from strata.weights.gguf_names import ARCHITECTURES, NGRAM_TABLE, Architecture, Heads, find_architecture
from strata.weights.ngram_seed import find_seed

_DEFAULT_MULTIPLE = 128  # rows of a published n-gram table are a multiple of it


def architecture_of(model: Gguf) -> Architecture:
    """The architecture of a file. Raises ConfigError that lists what is supported."""
    found = find_architecture(model.architecture)
    if found is None:
        supported = ", ".join(known.name for known in ARCHITECTURES)
        raise ConfigError(
            f"{model.path}: general.architecture = {model.architecture[:60]!r} is not supported; supported: {supported}"
        )
    return found


def read_config(model: Gguf, end_of_text_ids: list[int]) -> dict[str, Any]:
    """The text fields of a config.json that describe this file. Raises ConfigError that names a missing key."""
    return _Reader(model, architecture_of(model)).config(end_of_text_ids)


def heads_of(config: dict[str, Any]) -> Heads:
    """The heads that orders of rows depend on."""
    if "linear_num_key_heads" not in config:
        return Heads(head_dim=config["head_dim"])
    return Heads(
        key_heads=config["linear_num_key_heads"],
        value_heads=config["linear_num_value_heads"],
        key_dim=config["linear_key_head_dim"],
        value_dim=config["linear_value_head_dim"],
        head_dim=config["head_dim"],
    )


def short(number: float) -> float:
    """The number that people wrote: files round it to 32 bits, 1e-6 comes back as 9.99999997e-07."""
    return float(str(np.float32(number)))


class _Reader:
    """Reads one file's keys; they begin with the architecture's name."""

    def __init__(self, model: Gguf, architecture: Architecture) -> None:
        self._model = model
        self._metadata = model.metadata
        self._architecture = architecture
        self._prefix = f"{architecture.name}."

    def config(self, end_of_text_ids: list[int]) -> dict[str, Any]:
        layers = self._integer("block_count", minimum=1) - self._integer("nextn_predict_layers", 0)
        if not 1 <= layers <= len(self._model.tensors):
            raise ConfigError(
                f"{self._model.path}: {self._prefix}block_count means {layers:,} layers, which the "
                f"{len(self._model.tensors):,} tensors of the file cannot be"
            )
        table = self._model.tensors.get("token_embd.weight")
        if table is None:
            raise WeightFileError(f"{self._model.path} has no tensor token_embd.weight")
        fields = {
            "model_type": self._architecture.model_type,
            "vocab_size": table.shape[0],
            "hidden_size": self._integer("embedding_length", minimum=1),
            "num_hidden_layers": layers,
            "max_position_embeddings": self._integer("context_length", minimum=1),
            "tie_word_embeddings": "output.weight" not in self._model.tensors,
            "eos_token_id": [token_id for token_id in end_of_text_ids if token_id < table.shape[0]],
            **self._attention(),
        }
        if "ffn_gate_inp.weight" in {name.removeprefix("blk.0.") for name in self._model.tensors}:
            fields |= self._experts()
        elif f"{self._prefix}feed_forward_length" in self._metadata:
            fields["intermediate_size"] = self._uniform("feed_forward_length")
        if self._architecture.has_delta_net:
            fields |= self._delta_net(layers)
        if self._architecture.name == "qwen4exp":
            fields |= self._residual_and_indexer(layers) | self._ngrams(fields)
        return fields

    def _attention(self) -> dict[str, Any]:
        heads = self._uniform("attention.head_count")
        head_dim = self._integer("attention.key_length", self._integer("embedding_length") // heads, minimum=1)
        if self._integer("attention.value_length", head_dim) != head_dim:
            raise ConfigError(f"{self._model.path}: attention.value_length differs from key_length = {head_dim}")
        scaling = self._metadata.text(f"{self._prefix}rope.scaling.type", "none")
        factor = self._metadata.number(f"{self._prefix}rope.scaling.factor", 1.0)
        if (scaling != "none" and factor != 1.0) or "rope_freqs.weight" in self._model.tensors:
            raise ConfigError(f"{self._model.path}: rope scaling ({scaling[:40]}) is not supported; plain rope works")
        turned = self._integer("rope.dimension_count", head_dim, minimum=2)
        return {
            "num_attention_heads": heads,
            "num_key_value_heads": self._uniform("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "rms_norm_eps": short(self._metadata.number(f"{self._prefix}attention.layer_norm_rms_epsilon")),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": short(self._metadata.number(f"{self._prefix}rope.freq_base", 10000.0)),
                "partial_rotary_factor": _share(turned, head_dim),
            },
        }

    def _experts(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "num_experts": self._integer("expert_count", minimum=1),
            "num_experts_per_tok": self._integer("expert_used_count", minimum=1),
            "norm_topk_prob": True,  # what these architectures always mean
        }
        width = self._metadata.integer(f"{self._prefix}expert_feed_forward_length", 0)
        fields["moe_intermediate_size"] = width or self._width("blk.0.ffn_down_exps.weight")
        if "blk.0.ffn_down_shexp.weight" in self._model.tensors:
            fields["shared_expert_intermediate_size"] = self._width("blk.0.ffn_down_shexp.weight")
        return fields

    def _delta_net(self, layers: int) -> dict[str, Any]:
        state, inner = self._integer("ssm.state_size", minimum=1), self._integer("ssm.inner_size", minimum=1)
        value_heads = self._integer("ssm.time_step_rank", minimum=1)
        if inner % value_heads:
            raise ConfigError(
                f"{self._model.path}: ssm.inner_size = {inner} is no multiple of {value_heads} value heads"
            )
        is_recurrent = self._metadata.integers(f"{self._prefix}attention.recurrent_layers", None)
        if is_recurrent is None:
            interval = self._integer("full_attention_interval", 4, minimum=1)
            is_recurrent = [(index + 1) % interval != 0 for index in range(layers)]
        if len(is_recurrent) < layers:
            raise ConfigError(f"{self._model.path}: attention.recurrent_layers has {len(is_recurrent)} values")
        return {
            "linear_conv_kernel_dim": self._integer("ssm.conv_kernel", minimum=1),
            "linear_key_head_dim": state,
            "linear_value_head_dim": inner // value_heads,
            "linear_num_key_heads": self._integer("ssm.group_count", minimum=1),
            "linear_num_value_heads": value_heads,
            "layer_types": ["linear_attention" if is_recurrent[i] else "full_attention" for i in range(layers)],
        }

    def _residual_and_indexer(self, layers: int) -> dict[str, Any]:
        ratios = self._metadata.integers(f"{self._prefix}attention.compress_ratios", [])[:layers]
        used = {ratio for ratio in ratios if ratio}
        if len(used) != 1:
            why = "has no ratio above 0" if not used else f"has different ratios {sorted(used)}"
            raise ConfigError(
                f"{self._model.path}: {self._prefix}attention.compress_ratios {why}; this file would be read with "
                "dense attention, which is not what the model was trained with: convert it again"
            )
        return {
            "output_gate_type": "sigmoid",  # what this architecture always means
            "hc_count": self._integer("hyper_connection.count", minimum=2),
            "hc_lowrank": self._integer("hyper_connection.low_rank", minimum=1),
            "indexer_n_heads": self._integer("attention.indexer.head_count", minimum=1),
            "indexer_kv_heads": 1,
            "indexer_head_dim": self._integer("attention.indexer.key_length", minimum=1),
            "indexer_budget": self._integer("attention.indexer.top_k", minimum=1),
            "indexer_compress_ratio": used.pop(),
        }

    def _ngrams(self, fields: dict[str, Any]) -> dict[str, Any]:
        layers = self._metadata.integers(f"{self._prefix}ple.layers", [])
        if not layers:
            return {"ple_layer_ids": []}
        if len(layers) != 1:
            raise ConfigError(
                f"{self._model.path}: ple.layers names {len(layers)} layers; one n-gram layer is supported"
            )
        table = self._model.tensors.get(NGRAM_TABLE)
        if table is None or len(table.shape) != 2:
            raise WeightFileError(f"{self._model.path} has n-gram layers but no matrix {NGRAM_TABLE}")
        sizes = self._metadata.integers(f"{self._prefix}ple.head_vocab_sizes")
        multipliers = self._metadata.integers(f"{self._prefix}ple.layer_multipliers")
        rows, used = table.shape[0], sum(sizes)
        ngram_size = self._integer("ple.ngram_size", minimum=2)
        heads_per_ngram = self._integer("ple.heads_per_ngram", minimum=1)
        if len(sizes) != (ngram_size - 1) * heads_per_ngram or min(sizes) < 1 or used > rows:
            raise ConfigError(
                f"{self._model.path}: ple.head_vocab_sizes has {len(sizes):,} parts of {used:,} rows in all; "
                f"needed are {(ngram_size - 1) * heads_per_ngram:,} parts that fit the table's {rows:,} rows"
            )
        seed = find_seed(multipliers, fields["vocab_size"])
        if seed is None or len(multipliers) != ngram_size:
            raise ConfigError(
                f"{self._model.path}: the hash of its n-grams (ple.layer_multipliers) is not that of this architecture"
            )
        multiple = _DEFAULT_MULTIPLE if -(-used // _DEFAULT_MULTIPLE) * _DEFAULT_MULTIPLE == rows else rows
        return {
            "ple_layer_ids": [layers[0] + 1],
            "ple_embed_dim": table.shape[1] * len(sizes),
            "ple_conv_kernel_size": self._integer("ple.conv_kernel", minimum=1),
            "ngram_size": ngram_size,
            "heads_per_ngram": heads_per_ngram,
            "ngram_vocab_size_base": sizes[0],
            "make_ngram_vocab_size_divisible_by": multiple,
            "seed": seed,
            "eos_token_id": self._ends_with_first(fields["eos_token_id"], self._integer("ple.eos_token_id")),
        }

    @staticmethod
    def _ends_with_first(ids: list[int], first: int) -> list[int]:
        """The end-of-text ids with the one that the n-grams stop at in front."""
        return [first, *(token_id for token_id in ids if token_id != first)]

    def _width(self, name: str) -> int:
        tensor = self._model.tensors.get(name)
        if tensor is None:
            raise WeightFileError(f"{self._model.path} has no tensor {name}")
        return tensor.shape[-1]

    def _integer(self, key: str, default: Any = ..., minimum: int = 0) -> int:
        if default is ...:
            return self._metadata.integer(self._prefix + key, minimum=minimum)
        return self._metadata.integer(self._prefix + key, default, minimum=minimum)

    def _uniform(self, key: str, default: int | None = None) -> int:
        """A number that some files write as a list with one value a layer; layers without it have 0 there."""
        full = self._prefix + key
        if self._metadata.count(full):
            values = {value for value in self._metadata.integers(full) if value}
            if len(values) != 1:
                raise ConfigError(f"{self._model.path}: {full} differs between layers; one value is supported")
            return values.pop()
        return self._integer(key, ... if default is None else default, minimum=1)


def _share(turned: int, head_dim: int) -> float:
    """turned / head_dim as a float that gives `turned` back when it is multiplied and cut."""
    share = turned / head_dim
    return share if int(head_dim * share) == turned else float(np.nextafter(share, 2.0))
