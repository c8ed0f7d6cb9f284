"""What a model's windows on a device are made of: packed matrices, vectors and sizes, layer by layer, of any family.

Values only; who makes them of a built model is in `describe.py`, who launches kernels over them in `programs.py`.
"""

from dataclasses import dataclass, replace

import torch

from strata.experts.asking import AskingWindows
from strata.experts.tiers import ExpertTiers, LayerTiers
from strata.kernels.attention_rows import AttentionLayer
from strata.kernels.delta_rows import DeltaRowsShape, DeltaVectors
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.kernels.ngram_rows import AskedTable, NgramHash, NgramRowsShape, NgramVectors
from strata.models.device.file_tables import FileTables
from strata.models.device.held import DeviceMatrices
from strata.models.device.sizes import StateSizes
from strata.quant.packed import PackedMatrix


@dataclass(frozen=True)
class Gates:
    """Low-rank gates that mix the residual streams into a layer's input."""

    down: DeviceMatrices  # [low_rank (+ streams), streams * hidden]
    up: PackedMatrix  # [streams * hidden, low_rank]

    @property
    def has_strengths(self) -> bool:
        """Whether `down` also gives the strengths of the write that follows."""
        return self.down.shape[0] > self.up.layout.columns


@dataclass(frozen=True)
class ResidualRead:
    """How the streams become what a mixer, an MLP or the head reads."""

    norm_scale: torch.Tensor  # [streams * hidden]
    gates: Gates | None  # None: one stream, whose norm is the input


@dataclass(frozen=True)
class DeltaMixer:
    """A gated delta net."""

    index: int  # of the layers that have one: the place of its state
    in_all: DeviceMatrices
    out: DeviceMatrices
    vectors: DeltaVectors  # of this layer: views of `DeviceModel.delta_vectors`


@dataclass(frozen=True)
class AttentionMixer:
    """Causal attention, with an indexer or without."""

    index: int  # of the layers that have one: the place of its cells
    projections: DeviceMatrices  # queries (and gates), keys, values, then the indexer's queries and key
    out: DeviceMatrices
    layer: AttentionLayer


@dataclass(frozen=True)
class SharedMlp:
    """The expert of every row."""

    gate_up: DeviceMatrices
    down: PackedMatrix
    gate: torch.Tensor | None  # [hidden]; None: added ungated


@dataclass(frozen=True)
class SparseMlp:
    """Routed experts."""

    router: DeviceMatrices
    blobs: ExpertBlobs
    experts_per_token: int
    normalize: bool
    shared: SharedMlp | None
    tiers: LayerTiers | None = None  # None: every expert is in `blobs`; else they are where its tables say

    @property
    def asks_with_plain_rows(self) -> bool:
        """Whether the CPU's threads are given rows as they are, for experts in float codes."""
        return self.tiers is not None and self.tiers.mailbox.x is not None


@dataclass(frozen=True)
class DenseMlp:
    """One gated MLP."""

    gate_up: DeviceMatrices
    down: DeviceMatrices


@dataclass(frozen=True)
class NgramLayer:
    """The n-gram embedding in front of a layer's mixer."""

    index: int  # of the layers that have one: the place of its tail
    table: PackedMatrix | AskedTable  # on the device or in pinned memory, or in files, whose rows are asked for
    hash: NgramHash
    query_scale: torch.Tensor  # [streams * hidden]
    key: DeviceMatrices
    value: DeviceMatrices
    vectors: NgramVectors
    shape: NgramRowsShape

    @property
    def table_width(self) -> int:
        """Columns of a row's rows of the table, of all heads."""
        table = self.table
        return table.columns if isinstance(table, AskedTable) else self.hash.heads * table.layout.columns


@dataclass(frozen=True)
class DeviceLayer:
    """One layer in the order of its parts."""

    ngram: NgramLayer | None
    mixer_read: ResidualRead
    mixer: DeltaMixer | AttentionMixer
    mlp_read: ResidualRead
    mlp: SparseMlp | DenseMlp

    @property
    def kind(self) -> str:
        """What a profile calls layers like this one."""
        mixer = "delta" if isinstance(self.mixer, DeltaMixer) else "attention"
        return f"{mixer} with n-grams" if self.ngram is not None else mixer


@dataclass(frozen=True)
class DeviceModel:
    """A model on one device, or the part of it that is one of several stages: a run of its layers."""

    device: torch.device
    hidden: int
    streams: int
    vocabulary: int
    max_position: int
    eps: float
    sizes: StateSizes  # of these layers
    frequencies: torch.Tensor  # float64 [rotary_dim / 2], in main memory
    embedding: tuple[PackedMatrix, ...]  # empty unless the part is the first one
    layers: tuple[DeviceLayer, ...]
    delta_shape: DeltaRowsShape | None
    delta_vectors: DeltaVectors | None  # of all delta-net layers, one after another
    final_read: ResidualRead | None  # None unless it is the last one
    head: DeviceMatrices | None
    tiers: ExpertTiers | None = None  # of the layers' experts; None: all of them are on the device
    tables: FileTables | None = None  # n-gram tables that stay in files; None: all of them are in memory
    group: int = 0  # of slots, whose windows ask who answers: see `for_group`

    @property
    def is_first(self) -> bool:
        """Whether rows come as tokens; otherwise as the streams that another part of the model left."""
        return bool(self.embedding)

    @property
    def is_last(self) -> bool:
        """Whether it gives logits; otherwise streams for the next part of the model."""
        return self.final_read is not None

    @property
    def asked(self) -> tuple[AskingWindows, ...]:
        """What the group's windows ask while they run: what they are told of beginning and end."""
        return tuple(each.windows[self.group] for each in (self.tiers, self.tables) if each is not None)

    @property
    def sparse_layers(self) -> int:
        """How many have routed experts."""
        return sum(isinstance(layer.mlp, SparseMlp) for layer in self.layers)

    @property
    def stream_width(self) -> int:
        """Values of a row between layers."""
        return self.streams * self.hidden

    def for_group(self, group: int) -> "DeviceModel":
        """The same for another group of slots, whose windows run beside and ask in mailboxes of their own."""
        tiers, tables = self.tiers, self.tables
        layers = list[DeviceLayer]()
        for layer in self.layers:
            if tiers is not None and isinstance(layer.mlp, SparseMlp) and layer.mlp.tiers is not None:
                layer = replace(layer, mlp=replace(layer.mlp, tiers=tiers.layer(layer.mlp.tiers.layer, group)))
            if tables is not None and layer.ngram is not None and isinstance(layer.ngram.table, AskedTable):
                layer = replace(layer, ngram=replace(layer.ngram, table=tables.table(layer.ngram.table.index, group)))
            layers.append(layer)
        return replace(self, layers=tuple(layers), group=group)
