"""A built model of `DeviceWeights` described for the device: the same parts, vectors moved there, layers in order.

Knows the families that run on a device; knows no kernel's arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from strata.errors import ModelError
from strata.experts.tiers import ExpertTiers
from strata.kernels.attention_rows import AttentionLayer, AttentionRowsShape, AttentionVectors, IndexerRowsShape
from strata.kernels.delta_rows import DeltaRowsShape, DeltaVectors
from strata.kernels.ngram_rows import AskedTable, NgramHash, NgramRowsShape, NgramVectors
from strata.models.blocks.attention import AttentionShape, AttentionWeights
from strata.models.blocks.gated_delta_net import DeltaNetShape, DeltaNetWeights
from strata.models.blocks.indexed_attention import IndexerShape, IndexerWeights
from strata.models.blocks.linear import GatedMlpWeights, Weight
from strata.models.blocks.moe import MoeShape, MoeWeights
from strata.models.blocks.residual_streams import ResidualWeights
from strata.models.decoder import Decoder, DecoderLayer
from strata.models.device.description import (
    AttentionMixer,
    DeltaMixer,
    DenseMlp,
    DeviceLayer,
    DeviceModel,
    Gates,
    NgramLayer,
    ResidualRead,
    SharedMlp,
    SparseMlp,
)
from strata.models.device.file_tables import FileTables
from strata.models.device.held import DeviceExperts, DeviceMatrices, DeviceTable, FileTable, join_neighbours
from strata.models.device.layer_split import LayerSplit
from strata.models.device.sizes import state_sizes
from strata.models.mixers.delta_net import DeltaNetMixer
from strata.models.mixers.indexed_attention import IndexedAttentionMixer
from strata.models.mixers.ngram import NgramPart
from strata.models.qwen4_exp import Qwen4Exp
from strata.models.qwen4_exp_layer import Qwen4ExpLayer
from strata.models.weights import TableGather
from strata.quant.packed import PackedMatrix


@dataclass(frozen=True)
class StagePlace:
    """Where a run of layers is computed, and who has what of it is not there."""

    device: torch.device
    tiers: ExpertTiers | None = None  # of this run's layers with experts; None: all experts are on the device
    tables: FileTables | None = None  # of this run's n-gram tables; None: all of them are in memory


def describe(
    model: Any, device: torch.device, tiers: ExpertTiers | None = None, tables: FileTables | None = None
) -> DeviceModel:
    """The model without its draft layer. Raises ModelError for a family that does not run on a device.

    tiers: of the model's experts, layer by layer, if not all of them are on the device. tables: the n-gram tables that
    stay in files, layer by layer.
    """
    layers = require_described(model).layers
    (whole,) = describe_parts(model, LayerSplit(len(layers)), [StagePlace(device, tiers, tables)])
    return whole


def describe_parts(model: Any, split: LayerSplit, places: Sequence[StagePlace | None]) -> tuple[DeviceModel, ...]:
    """The same of each run of layers: the first one has the embedding, the last one the head. A place for each.

    What a run has of layers that keep state or have experts is counted from 0 on. None: that run is left out.
    """
    found = require_described(model)
    assert split.layers == len(found.layers), "a split is of this model's layers"
    runs = [(run, place) for run, place in zip(split.runs, places, strict=True) if place is not None]
    if isinstance(found, Qwen4Exp):
        return tuple(_describe_qwen4_exp(found, _Parts(place), run) for run, place in runs)
    return tuple(_describe_decoder(found, _Parts(place), run) for run, place in runs)


def require_described(model: Any) -> Qwen4Exp | Decoder:
    """The model. Raises ModelError for a family that does not run on a device."""
    if isinstance(model, Qwen4Exp | Decoder):
        return model
    raise ModelError(f"models of the class {type(model).__name__} do not run on a GPU yet: use `--device cpu`")


def _describe_qwen4_exp(model: Qwen4Exp, parts: "_Parts", run: range) -> DeviceModel:
    config = model.config
    layers = model.layers[run.start : run.stop]
    is_last = run.stop == len(model.layers)
    mixers = [layer.mixer for layer in layers]
    nets = [mixer.weights for mixer in mixers if isinstance(mixer, DeltaNetMixer)]
    shape = delta_shape(config.delta_net) if nets else None
    vectors = parts.delta_vectors(nets)
    return DeviceModel(
        device=parts.device,
        hidden=config.hidden_size,
        streams=config.streams,
        vocabulary=config.vocabulary_size,
        max_position=config.max_position,
        eps=config.eps,
        sizes=state_sizes(config, run),
        frequencies=model.frequencies,
        embedding=() if run.start else _table(model.embedding),
        layers=tuple(_qwen4_exp_layer(parts, layer, vectors) for layer in layers),
        delta_shape=shape,
        delta_vectors=vectors,
        final_read=parts.residual(model.final_residual) if is_last else None,
        head=_matrices(model.head_weight) if is_last else None,
        tiers=parts.tiers,
        tables=parts.tables,
    )


def _qwen4_exp_layer(parts: "_Parts", layer: Qwen4ExpLayer, vectors: DeltaVectors | None) -> DeviceLayer:
    ngram = None if layer.ngram is None else parts.ngram(layer.ngram)
    mixer: DeltaMixer | AttentionMixer
    if isinstance(layer.mixer, DeltaNetMixer):
        assert vectors is not None
        mixer = parts.delta(layer.mixer.weights, vectors)
    else:
        assert isinstance(layer.mixer, IndexedAttentionMixer)
        indexed = layer.mixer
        mixer = parts.attention(indexed.weights, indexed.shape, (indexed.indexer_weights, indexed.indexer))
    return DeviceLayer(
        ngram,
        parts.residual(layer.mixer_residual),
        mixer,
        parts.residual(layer.moe_residual),
        parts.sparse(layer.moe_weights, layer.moe_shape),
    )


def _describe_decoder(model: Decoder, parts: "_Parts", run: range) -> DeviceModel:
    config, weights = model.config, model.weights
    layers = model.layers[run.start : run.stop]
    is_last = run.stop == len(model.layers)
    nets = [layer.weights.mixer for layer in layers if isinstance(layer.weights.mixer, DeltaNetWeights)]
    shape = delta_shape(config.require_delta_net()) if nets else None
    vectors = parts.delta_vectors(nets)
    return DeviceModel(
        device=parts.device,
        hidden=config.hidden_size,
        streams=1,
        vocabulary=config.vocabulary_size,
        max_position=config.max_position,
        eps=config.eps,
        sizes=state_sizes(config, run),
        frequencies=model.frequencies,
        embedding=() if run.start else _table(weights.embedding),
        layers=tuple(_decoder_layer(parts, layer, vectors) for layer in layers),
        delta_shape=shape,
        delta_vectors=vectors,
        final_read=ResidualRead(parts.vector(weights.final_norm_scale), None) if is_last else None,
        head=_matrices(weights.head) if is_last else None,
        tiers=parts.tiers,
    )


def _decoder_layer(parts: "_Parts", layer: DecoderLayer, vectors: DeltaVectors | None) -> DeviceLayer:
    config, weights = layer.config, layer.weights
    mixer: DeltaMixer | AttentionMixer
    if isinstance(weights.mixer, DeltaNetWeights):
        assert vectors is not None
        mixer = parts.delta(weights.mixer, vectors)
    else:
        mixer = parts.attention(weights.mixer, config.attention, None)
    mlp: SparseMlp | DenseMlp
    if isinstance(weights.mlp, GatedMlpWeights):
        mlp = DenseMlp(_matrices(weights.mlp.gate_up), _matrices(weights.mlp.down))
    else:
        mlp = parts.sparse(weights.mlp, config.mlp.require_moe())
    mixer_read = ResidualRead(parts.vector(weights.mixer_norm_scale), None)
    return DeviceLayer(None, mixer_read, mixer, ResidualRead(parts.vector(weights.mlp_norm_scale), None), mlp)


class _Parts:
    """Makes the parts of the layers of one place, and counts those that keep state or have experts."""

    def __init__(self, place: StagePlace) -> None:
        self.device = place.device
        self.tiers = place.tiers
        self.tables = place.tables
        self._counts = {"delta": 0, "attention": 0, "ngram": 0, "sparse": 0, "file table": 0}

    def vector(self, values: torch.Tensor) -> torch.Tensor:
        """Values as kernels read them."""
        return values.float().contiguous().to(self.device)

    def delta_vectors(self, nets: Sequence[DeltaNetWeights]) -> DeltaVectors | None:
        """The vectors of all delta nets, one layer after another."""
        if not nets:
            return None
        names = ("conv", "decay_rate", "decay_bias", "norm_scale")
        return DeltaVectors(*(self.vector(torch.stack([getattr(net, name) for net in nets])) for name in names))

    def delta(self, weights: DeltaNetWeights, vectors: DeltaVectors) -> DeltaMixer:
        index = self._next("delta")
        return DeltaMixer(index, _matrices(weights.in_all), _matrices(weights.out), vectors.layer(index))

    def attention(
        self, weights: AttentionWeights, shape: AttentionShape, indexer: tuple[IndexerWeights, IndexerShape] | None
    ) -> AttentionMixer:
        projections, index_shape = _matrices(weights.qkv).parts, None
        vectors = AttentionVectors(self._scale(weights.query_scale), self._scale(weights.key_scale))
        if indexer is not None:
            index_weights, index = indexer
            projections = (*projections, *_matrices(index_weights.query_key).parts)
            index_shape = IndexerRowsShape(index.heads, index.head_dim, index.ratio, index.top_blocks, index.eps)
            vectors = replace(
                vectors,
                index_query_scale=self.vector(index_weights.query_scale),
                index_key_scale=self.vector(index_weights.key_scale),
            )
        rows_shape = AttentionRowsShape(
            shape.query_heads, shape.kv_heads, shape.head_dim, shape.eps, shape.has_output_gate, index_shape
        )
        joined = DeviceMatrices(join_neighbours(projections))
        layer = AttentionLayer(rows_shape, vectors)
        return AttentionMixer(self._next("attention"), joined, _matrices(weights.out), layer)

    def residual(self, weights: ResidualWeights) -> ResidualRead:
        gates = Gates(_matrices(weights.down), _only(_matrices(weights.up).parts, "input_mix_weight_up"))
        return ResidualRead(self.vector(weights.norm_scale), gates)

    def sparse(self, weights: MoeWeights, shape: MoeShape) -> SparseMlp:
        experts = weights.experts
        assert isinstance(experts, DeviceExperts)
        shared = None
        if weights.shared is not None:
            gate = None if weights.shared_gate is None else self.vector(weights.shared_gate.flatten())
            down = _only(_matrices(weights.shared.down).parts, "shared_expert.down_proj")
            shared = SharedMlp(_matrices(weights.shared.gate_up), down, gate)
        tiers, index = self.tiers, self._next("sparse")
        return SparseMlp(
            _matrices(weights.router),
            experts.blobs,
            shape.experts_per_token,
            shape.normalize_weights,
            shared,
            None if tiers is None else tiers.layer(index),
        )

    def ngram(self, part: NgramPart) -> NgramLayer:
        shape, weights = part.shape, part.weights
        vectors = NgramVectors(
            *(self.vector(values) for values in (weights.key_scale, weights.conv_scale, weights.conv))
        )
        hidden = weights.conv.shape[1] // shape.streams
        return NgramLayer(
            self._next("ngram"),
            self._ngram_table(part.table),
            NgramHash.of(shape.multipliers, shape.head_sizes, shape.end_of_text_id, self.device),
            self.vector(weights.query_scale),
            _matrices(weights.key),
            _matrices(weights.value),
            vectors,
            NgramRowsShape(shape.streams, hidden, shape.conv_kernel, shape.ngram_size, shape.eps),
        )

    def _ngram_table(self, table: TableGather) -> PackedMatrix | AskedTable:
        if not isinstance(table, FileTable):
            return _only(_table(table), "ngram_embedding")
        assert self.tables is not None
        return self.tables.table(self._next("file table"))

    def _scale(self, scale: torch.Tensor | None) -> torch.Tensor | None:
        return None if scale is None else self.vector(scale)

    def _next(self, kind: str) -> int:
        self._counts[kind] += 1
        return self._counts[kind] - 1


def delta_shape(shape: DeltaNetShape) -> DeltaRowsShape:
    """A delta net's sizes as its kernels take them."""
    return DeltaRowsShape(
        key_heads=shape.key_heads,
        value_heads=shape.value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        conv_kernel=shape.conv_kernel,
        eps=shape.eps,
        gate_is_sigmoid=shape.gate_activation == "sigmoid",
    )


def _matrices(weight: Weight) -> DeviceMatrices:
    assert isinstance(weight, DeviceMatrices)
    return weight


def _table(table: TableGather) -> tuple[PackedMatrix, ...]:
    assert isinstance(table, DeviceTable)
    return table.parts


def _only(parts: Sequence[PackedMatrix], name: str) -> PackedMatrix:
    """The one part that a kernel takes. Raises ModelError if a file cuts the matrix into several kinds."""
    if len(parts) != 1:
        kinds = ", ".join(part.layout.code.value for part in parts)
        raise ModelError(f"tensors {name} come in pieces of different kinds ({kinds}); a GPU takes them in one kind")
    return parts[0]
