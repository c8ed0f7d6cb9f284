"""A plain pre-norm decoder: x + mixer(norm(x)), then x + mlp(norm(x)); llama and three qwen3.

Knows how blocks and mixers make a layer and a model; knows no config field and no tensor name.
"""

from collections.abc import Sequence
from typing import Any

import torch

from strata.models.blocks.gated_delta_net import DeltaNetWeights
from strata.models.blocks.linear import GatedMlpWeights, gated_mlp, linear
from strata.models.blocks.moe import RoutingObserver, moe
from strata.models.blocks.norm import rms_norm
from strata.models.blocks.rotary import inverse_frequencies
from strata.models.decoder_config import DecoderConfig
from strata.models.decoder_weights import DecoderWeights, LayerWeights
from strata.models.mixers.attention import AttentionMixer
from strata.models.mixers.base import RowsInfo, StatefulPart
from strata.models.mixers.delta_net import DeltaNetMixer
from strata.models.row_model import RowModel


class DecoderLayer:
    """One layer; its state is its mixer's. See `StatefulPart`."""

    def __init__(self, index: int, config: DecoderConfig, weights: LayerWeights) -> None:
        self.index = index
        self.config = config
        self.weights = weights
        self.observer: RoutingObserver | None = None
        is_dense = isinstance(weights.mlp, GatedMlpWeights)
        self.routed_experts = 0 if is_dense else config.mlp.require_moe().experts_per_token
        self.mixer: StatefulPart
        if isinstance(weights.mixer, DeltaNetWeights):
            self.mixer = DeltaNetMixer(weights.mixer, config.require_delta_net())
        else:
            self.mixer = AttentionMixer(weights.mixer, config.attention)

    def new_state(self) -> Any:
        return self.mixer.new_state()

    def read(self, x: torch.Tensor, rows: RowsInfo, state: Any) -> torch.Tensor:
        return self._add_mlp(x + self.mixer.read(self._normed(x), rows, state))

    def window(self, x: torch.Tensor, rows: RowsInfo, states: Sequence[Any]) -> tuple[torch.Tensor, Any]:
        mixed, pending = self.mixer.window(self._normed(x), rows, states)
        return self._add_mlp(x + mixed), pending

    def commit(self, pending: Any, slot: int, state: Any, accepted_rows: int) -> None:
        self.mixer.commit(pending, slot, state, accepted_rows)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weights.mixer_norm_scale, self.config.eps)

    def _add_mlp(self, x: torch.Tensor) -> torch.Tensor:
        normed, mlp = rms_norm(x, self.weights.mlp_norm_scale, self.config.eps), self.weights.mlp
        if isinstance(mlp, GatedMlpWeights):
            return x + gated_mlp(normed, mlp)
        return x + moe(normed, mlp, self.config.mlp.require_moe(), self.index, self.observer)


class Decoder(RowModel):
    """See `LanguageModel`. `Output.hidden` is the last layer's output before the final norm [rows, hidden]."""

    layers: Sequence[DecoderLayer]

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, dtype: torch.dtype) -> None:
        self.config = config
        self.weights = weights
        self.vocabulary_size = config.vocabulary_size
        self.max_position = config.max_position
        self.dtype = dtype
        self.frequencies = inverse_frequencies(config.rotary.rotary_dim, config.rotary.theta)
        self.layers = [DecoderLayer(index, config, layer) for index, layer in enumerate(weights.layers)]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.weights.embedding(token_ids)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(rms_norm(hidden, self.weights.final_norm_scale, self.config.eps), self.weights.head)

    def observe_routing(self, observer: RoutingObserver | None) -> None:
        """Call `observer(layer, expert ids [rows, experts per token])` in each sparse layer, each call; None: stop."""
        for layer in self.layers:
            layer.observer = observer
