"""`qwen4_exp`: residual streams, n-gram embedding, gated delta nets and indexed attention, experts in every layer.

Knows how the layers make a model; a layer is in `qwen4_exp_layer.py`, sizes and tensor names in `qwen4_exp_config.py`,
reading tensors in `qwen4_exp_weights.py`, the draft layer in `qwen4_exp_mtp.py`. Vision is ignored.
"""

import torch

from strata.models.blocks.linear import linear
from strata.models.blocks.moe import RoutingObserver
from strata.models.blocks.residual_streams import read_streams
from strata.models.blocks.rotary import inverse_frequencies
from strata.models.qwen4_exp_config import MODEL_TYPES, Qwen4ExpConfig, expected_tensors, parse_config
from strata.models.qwen4_exp_layer import Qwen4ExpLayer, build_layer
from strata.models.qwen4_exp_mtp import Qwen4ExpMtp
from strata.models.qwen4_exp_weights import NGRAM_TABLE, Qwen4ExpReader
from strata.models.row_model import RowModel
from strata.models.weights import Weights

__all__ = ["MODEL_TYPES", "Qwen4Exp", "Qwen4ExpConfig", "build", "expected_tensors", "parse_config"]

RESIDENT_TABLE_BYTES = 256 << 20  # an n-gram table up to this size (as it is held) is kept in memory


class Qwen4Exp(RowModel):
    """See `LanguageModel`. `Output.hidden` is the streams before the final mixer [rows, streams * hidden]."""

    layers: list[Qwen4ExpLayer]
    draft_head: Qwen4ExpMtp | None

    def __init__(self, config: Qwen4ExpConfig, reader: Qwen4ExpReader) -> None:
        self.config = config
        self.dtype = reader.dtype
        self.vocabulary_size = config.vocabulary_size
        self.max_position = config.max_position
        self.frequencies = inverse_frequencies(config.rotary.rotary_dim, config.rotary.theta)
        self.embedding = reader.table("model.embed_tokens.weight")
        self.head_weight = reader.matrix("model.embed_tokens.weight" if config.ties_embeddings else "lm_head.weight")
        self.final_residual = reader.residual("model.hyper_connection_mixer.", has_inject=False)
        self.layers = [self._layer(reader, index) for index in range(config.num_layers)]
        self.draft_head = None
        if config.has_mtp and reader.has_any("mtp."):  # files saved by other libraries often lack the draft layer
            draft_layer = build_layer(reader, config.num_layers, "mtp.layers.0.", True, self.frequencies)
            final = reader.residual("mtp.hyper_connection_mixer.", has_inject=False)
            self.draft_head = Qwen4ExpMtp(self, draft_layer, reader.mtp_join("mtp."), final)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Every stream starts as the token's embedding: [rows, streams * hidden]."""
        return self.embedding(token_ids).repeat(1, self.config.streams)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Streams [rows, streams * hidden] -> logits [rows, vocabulary]."""
        return linear(read_streams(hidden, self.final_residual)[0], self.head_weight)

    def observe_routing(self, observer: RoutingObserver | None) -> None:
        """Call `observer(layer, expert ids [rows, experts per token])` in every layer of every call; None: stop.

        The draft layer counts as layer `num_layers`.
        """
        for layer in self.layers:
            layer.observer = observer
        if self.draft_head is not None:
            self.draft_head.layer.observer = observer

    def _layer(self, reader: Qwen4ExpReader, index: int) -> Qwen4ExpLayer:
        prefix = f"model.layers.{index}."
        ngram = reader.ngram(f"{prefix}ple.", self.config.ngrams[index]) if index in self.config.ngrams else None
        is_attention = self.config.layer_is_attention[index]
        return build_layer(reader, index, prefix, is_attention, self.frequencies, ngram)


def build(config: Qwen4ExpConfig, weights: Weights, most_table_bytes: int = RESIDENT_TABLE_BYTES) -> Qwen4Exp:
    """The model with all its weights read; n-gram tables above this size give single rows from their files."""
    names = [f"model.layers.{index}.{NGRAM_TABLE}" for index in config.ngrams]
    keeps_tables = sum(weights.held_bytes(name) for name in names) <= most_table_bytes
    return Qwen4Exp(config, Qwen4ExpReader(config, weights, keeps_tables))
