"""One layer of `qwen4_exp` over residual streams: n-gram block (some layers), mixer, experts.

Knows the order of the parts and how a layer is put together from a reader; knows no other layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from strata.models.blocks.moe import MoeShape, MoeWeights, RoutingObserver, moe
from strata.models.blocks.residual_streams import ResidualWeights, read_streams, write_streams
from strata.models.mixers.base import RowsInfo, StatefulPart
from strata.models.mixers.ngram import NgramPart
from strata.models.qwen4_exp_weights import Qwen4ExpReader


@dataclass
class LayerState:
    """One slot's state of one layer."""

    mixer: Any
    ngram: Any  # None where the layer has no n-gram block

    def bytes_used(self) -> int:
        return self.mixer.bytes_used() + (self.ngram.bytes_used() if self.ngram else 0)

    def clone(self) -> "LayerState":
        return LayerState(self.mixer.clone(), self.ngram.clone() if self.ngram else None)


class Qwen4ExpLayer:
    """See `StatefulPart`; x is the rows' streams [rows, streams * hidden]."""

    def __init__(
        self,
        index: int,
        mixer: StatefulPart,
        residuals: tuple[ResidualWeights, ResidualWeights],
        experts: tuple[MoeWeights, MoeShape],
        ngram: NgramPart | None = None,
    ) -> None:
        self.index = index
        self.mixer = mixer
        self.mixer_residual, self.moe_residual = residuals
        self.moe_weights, self.moe_shape = experts
        self.ngram = ngram
        self.observer: RoutingObserver | None = None
        self.routed_experts = self.moe_shape.experts_per_token

    def new_state(self) -> LayerState:
        return LayerState(self.mixer.new_state(), self.ngram.new_state() if self.ngram else None)

    def read(self, x: torch.Tensor, rows: RowsInfo, state: LayerState) -> torch.Tensor:
        if self.ngram is not None:
            x = x + self.ngram.read(x, rows, state.ngram)
        mixed, strengths = read_streams(x, self.mixer_residual)
        x = write_streams(x, self.mixer.read(mixed, rows, state.mixer), strengths)
        return self._experts(x)

    def window(self, x: torch.Tensor, rows: RowsInfo, states: Sequence[LayerState]) -> tuple[torch.Tensor, Any]:
        ngram_pending = None
        if self.ngram is not None:
            added, ngram_pending = self.ngram.window(x, rows, [state.ngram for state in states])
            x = x + added
        mixed, strengths = read_streams(x, self.mixer_residual)
        output, mixer_pending = self.mixer.window(mixed, rows, [state.mixer for state in states])
        return self._experts(write_streams(x, output, strengths)), (ngram_pending, mixer_pending)

    def commit(self, pending: Any, slot: int, state: LayerState, accepted_rows: int) -> None:
        ngram_pending, mixer_pending = pending
        if self.ngram is not None:
            self.ngram.commit(ngram_pending, slot, state.ngram, accepted_rows)
        self.mixer.commit(mixer_pending, slot, state.mixer, accepted_rows)

    def _experts(self, x: torch.Tensor) -> torch.Tensor:
        mixed, strengths = read_streams(x, self.moe_residual)
        output = moe(mixed, self.moe_weights, self.moe_shape, self.index, self.observer)
        return write_streams(x, output, strengths)


def build_layer(
    reader: Qwen4ExpReader,
    index: int,
    prefix: str,
    is_attention: bool,
    frequencies: torch.Tensor,
    ngram: NgramPart | None = None,
) -> Qwen4ExpLayer:
    """One layer with the tensors that begin with `prefix`; the draft layer is built the same way."""
    mixer: StatefulPart
    if is_attention:
        mixer = reader.indexed_attention(f"{prefix}self_attn.", frequencies)
    else:
        mixer = reader.delta_net(f"{prefix}linear_attn.")
    residuals = (
        reader.residual(f"{prefix}attn_hyper_connection.", has_inject=True),
        reader.residual(f"{prefix}mlp_hyper_connection.", has_inject=True),
    )
    return Qwen4ExpLayer(index, mixer, residuals, (reader.experts(f"{prefix}mlp."), reader.config.moe), ngram)
