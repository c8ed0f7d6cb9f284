"""From canonical tensors of `qwen4_exp` to the blocks' weights: shapes checked, maps that share an input joined.

Knows tensor names; knows no maths beyond what is folded in at load (norms as 1 + weight, -exp(A_log)).
"""

import torch

from strata.errors import WeightFileError
from strata.models.blocks.attention import AttentionWeights
from strata.models.blocks.gated_delta_net import DeltaNetWeights
from strata.models.blocks.indexed_attention import IndexerWeights
from strata.models.blocks.linear import GatedMlpWeights, Weight
from strata.models.blocks.moe import MoeWeights
from strata.models.blocks.mtp_head import MtpJoinWeights
from strata.models.blocks.ngram_embedding import NgramShape, NgramWeights
from strata.models.blocks.residual_streams import ResidualWeights
from strata.models.mixers.delta_net import DeltaNetMixer
from strata.models.mixers.indexed_attention import IndexedAttentionMixer
from strata.models.mixers.ngram import NgramPart
from strata.models.qwen4_exp_config import Qwen4ExpConfig, expected_tensors
from strata.models.weights import TableGather, Weights

NGRAM_TABLE = "ple.ple_embedding.ngram_embedding.weight"


class Qwen4ExpReader:
    """Reads one model's weights part by part."""

    def __init__(self, config: Qwen4ExpConfig, weights: Weights, keeps_tables: bool) -> None:
        self.config = config
        self.dtype = weights.dtype
        self._weights = weights
        self._keeps_tables = keeps_tables
        self._shapes = expected_tensors(config)

    def has_any(self, prefix: str) -> bool:
        """True if the source holds any tensor whose name begins with `prefix`."""
        return any(name.startswith(prefix) for name in self._weights.names())

    def values(self, name: str) -> torch.Tensor:
        """A tensor in the compute dtype. Raises WeightFileError if its shape is not what the config says."""
        self._check_shape(name)
        return self._weights.values(name)

    def matrix(self, *names: str) -> Weight:
        """Matrices under one another; shapes are checked as for `values`."""
        for name in names:
            self._check_shape(name)
        return self._weights.matrix(*names)

    def table(self, name: str) -> TableGather:
        """A matrix in memory whose rows are looked up; its shape is checked as for `values`."""
        self._check_shape(name)
        return self._weights.table(name)

    def residual(self, prefix: str, has_inject: bool) -> ResidualWeights:
        names = ("input_mix_weight_down", "block_inject_weight") if has_inject else ("input_mix_weight_down",)
        down = self.matrix(*(f"{prefix}{name}.weight" for name in names))
        up = self.matrix(f"{prefix}input_mix_weight_up.weight")
        return ResidualWeights(self._scale(f"{prefix}hc_norm.weight"), down, up, self.config.streams, self.config.eps)

    def experts(self, prefix: str) -> MoeWeights:
        shared = f"{prefix}shared_expert."
        gate_up = self.matrix(*(f"{shared}{name}_proj.weight" for name in ("gate", "up")))
        for name in ("gate_up", "down"):
            self._check_shape(f"{prefix}experts.{name}_proj")
        return MoeWeights(
            router=self.matrix(f"{prefix}gate.weight"),
            experts=self._weights.experts(prefix),
            shared=GatedMlpWeights(gate_up, self.matrix(f"{shared}down_proj.weight")),
            shared_gate=self.values(f"{prefix}shared_expert_gate.weight"),
        )

    def delta_net(self, prefix: str) -> DeltaNetMixer:
        weights = DeltaNetWeights(
            in_all=self.matrix(*(f"{prefix}in_proj_{name}.weight" for name in ("qkv", "z", "b", "a"))),
            conv=self._taps(f"{prefix}conv1d.weight"),
            decay_rate=-self.values(f"{prefix}A_log").exp(),
            decay_bias=self.values(f"{prefix}dt_bias"),
            norm_scale=self.values(f"{prefix}norm.weight"),
            out=self.matrix(f"{prefix}out_proj.weight"),
        )
        return DeltaNetMixer(weights, self.config.delta_net)

    def indexed_attention(self, prefix: str, frequencies: torch.Tensor) -> IndexedAttentionMixer:
        weights = AttentionWeights(
            qkv=self.matrix(*(f"{prefix}{name}_proj.weight" for name in ("q", "k", "v"))),
            out=self.matrix(f"{prefix}o_proj.weight"),
            query_scale=self._scale(f"{prefix}q_norm.weight"),
            key_scale=self._scale(f"{prefix}k_norm.weight"),
        )
        indexer = IndexerWeights(
            query_key=self.matrix(f"{prefix}indexer.index_qk_proj.weight"),
            query_scale=self._scale(f"{prefix}indexer.q_layernorm.weight"),
            key_scale=self._scale(f"{prefix}indexer.k_layernorm.weight"),
        )
        return IndexedAttentionMixer(weights, self.config.attention, indexer, self.config.indexer, frequencies)

    def ngram(self, prefix: str, shape: NgramShape) -> NgramPart:
        self._check_hash(f"{prefix}ple_embedding.", shape)
        weights = NgramWeights(
            key=self.matrix(f"{prefix}key_proj.weight"),
            value=self.matrix(f"{prefix}value_proj.weight"),
            key_scale=self._scale(f"{prefix}norm_key.weight"),
            query_scale=self._scale(f"{prefix}norm_query.weight"),
            conv_scale=self._scale(f"{prefix}norm_conv.weight"),
            conv=self._taps(f"{prefix}conv1d.weight"),
        )
        return NgramPart(weights, shape, self._table(f"{prefix.removesuffix('ple.')}{NGRAM_TABLE}"))

    def mtp_join(self, prefix: str) -> MtpJoinWeights:
        return MtpJoinWeights(
            embedding_scale=self._scale(f"{prefix}pre_fc_norm_embedding.weight"),
            hidden_scale=self._scale(f"{prefix}pre_fc_norm_hidden.weight"),
            embedding_map=self.matrix(f"{prefix}fc_embedding.weight"),
            hidden_map=self.matrix(f"{prefix}fc_hidden.weight"),
            eps=self.config.eps,
        )

    def _scale(self, name: str) -> torch.Tensor:
        """A norm's scale; this family publishes scale - 1."""
        return self.values(name) + 1.0

    def _taps(self, name: str) -> torch.Tensor:
        """Convolution weights [width, 1, kernel] as [kernel, width]."""
        return self.values(name).squeeze(1).t().contiguous()

    def _table(self, name: str) -> TableGather:
        """Row access to an n-gram table; the rows come from memory or straight from the source."""
        self._check_shape(name)
        return self._weights.table(name) if self._keeps_tables else self._weights.table_in_files(name)

    def _check_hash(self, prefix: str, shape: NgramShape) -> None:
        """Published files may hold the hash's constants, which follow from the config: refuse files that differ."""
        offsets = tuple(sum(shape.head_sizes[:head]) for head in range(shape.heads))
        constants = {
            "layer_multipliers": shape.multipliers,
            "ngram_heads_vocab_sizes": shape.head_sizes,
            "ngram_heads_offsets": offsets,
        }
        for name, expected in constants.items():
            if prefix + name in self._weights.names():
                found = tuple(self._weights.values(prefix + name).tolist())
                if found != expected:
                    raise WeightFileError(
                        f"tensor {prefix + name} holds {list(found)}, but the config's n-gram fields give "
                        f"{list(expected)}; the weight files and the config do not belong together"
                    )

    def _check_shape(self, name: str) -> None:
        found, expected = self._weights.shape(name), self._shapes[name]
        if found != expected:
            raise WeightFileError(
                f"tensor {name} has shape {list(found)}, but the config asks for {list(expected)}; "
                "the weight files and the config do not belong together"
            )
