"""Where experts come from, one at a time and packed: GGUF bytes, stored safetensors, or safetensors quantized.

Knows how the two kinds of source show an expert's bytes; knows no arena. A layer is named by its prefix,
`model.layers.3.mlp.`.
"""

import mmap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from strata.errors import WeightFileError
from strata.experts.blob import ExpertMatrices, layout_of
from strata.native.file_map import map_of
from strata.quant.at_load import quantize_matrix, quantized_layout
from strata.quant.formats import by_gguf_type, by_name
from strata.quant.formats.fp8_block import pack_fp8_blocks
from strata.quant.layout import BlobLayout
from strata.quant.packed import PackedMatrix
from strata.weights.experts import StoredMatrix
from strata.weights.gguf_source import GgufSource, RawExperts, RawMatrix
from strata.weights.header import FP8
from strata.weights.opening import ModelSource
from strata.weights.quantizing import QuantizingSource
from strata.weights.safetensors import SafetensorsSource
from strata.weights.source import WeightSource

_GATE_UP, _DOWN = "experts.gate_up_proj", "experts.down_proj"


PublishedExperts = tuple[RawExperts, RawExperts, RawExperts]  # gate, up, down


class ExpertSource(Protocol):
    """Experts of a model, packed on request; after the first one of a layer, several threads may ask for the others."""

    def layers(self) -> tuple[str, ...]:
        """Prefixes of the layers that have experts, in the model's order."""
        ...

    def count(self, layer: str) -> int:
        """Experts of a layer."""
        ...

    def layout(self, layer: str) -> BlobLayout:
        """The layout that all experts of a layer share."""
        ...

    def matrices(self, layer: str, expert: int) -> ExpertMatrices:
        """Gate, up and down of one expert. Raises WeightFileError for what cannot be used."""
        ...

    def published(self, layer: str) -> PublishedExperts | None:
        """All experts of a layer as a GGUF file holds them; None where they are not blocks of one."""
        ...

    def read_ahead(self, layer: str, expert: int) -> None:
        """Tell the system that this expert is wanted soon; nothing if there is no such expert."""
        ...

    def forget(self, layer: str, expert: int) -> None:
        """Tell the system that this expert's published bytes are not wanted any more."""
        ...


def open_experts(source: ModelSource) -> ExpertSource:
    """The experts of a model: as they are stored, or quantized if the source quantizes."""
    if isinstance(source, GgufSource):
        return GgufExperts(source)
    return QuantizedExperts(source) if isinstance(source, QuantizingSource) else StoredExperts(source)


def expert_layers(names: Collection[str]) -> tuple[str, ...]:
    """The prefixes of layers with experts among canonical names, by the layer's number, draft layers last."""

    def place(prefix: str) -> tuple[bool, int]:
        numbers = [int(part) for part in prefix.split(".") if part.isdigit()]
        return prefix.startswith("mtp."), numbers[0] if numbers else 0

    return tuple(sorted((name.removesuffix(_DOWN) for name in names if name.endswith(_DOWN)), key=place))


@contextmanager
def _named(source: ModelSource, layer: str, expert: int) -> Iterator[None]:
    """Whoever packs bytes knows neither their file nor the expert."""
    try:
        yield
    except WeightFileError as reason:
        raise WeightFileError(f"{source.directory}: expert {expert} of {layer[:-1]}: {reason}") from reason


class _NamedExperts:
    """What a weight source's names and shapes tell of its experts, however they are stored."""

    _source: WeightSource

    def layers(self) -> tuple[str, ...]:
        return expert_layers(self._source.names())

    def count(self, layer: str) -> int:
        return self._source.shape(layer + _DOWN)[0]


class GgufExperts(_NamedExperts):
    """Experts of a GGUF file: every published format in its storage code, the same values."""

    _source: GgufSource

    def __init__(self, source: GgufSource) -> None:
        self._source = source
        self._layouts: dict[str, BlobLayout] = {}
        self._published: tuple[str, PublishedExperts] | None = None  # of the layer that is packed

    def layout(self, layer: str) -> BlobLayout:
        if layer not in self._layouts:
            gate, up, down = (by_gguf_type(raw.type.number).layout(*_shape(raw)) for raw in self._raw(layer, 0))
            self._layouts[layer] = BlobLayout(gate, up, down)
        return self._layouts[layer]

    def matrices(self, layer: str, expert: int) -> ExpertMatrices:
        raw_parts = self._raw(layer, expert)
        with _named(self._source, layer, expert):
            gate, up, down = map(_pack_raw, raw_parts)
        return gate, up, down

    def published(self, layer: str) -> PublishedExperts:
        if self._published is None or self._published[0] != layer:
            self._published = layer, self._find_published(layer)
        return self._published[1]

    def _find_published(self, layer: str) -> PublishedExperts:
        gate_up = self._source.raw_experts(layer + _GATE_UP)
        (down,) = self._source.raw_experts(layer + _DOWN)
        if len(gate_up) == 2:
            return (*gate_up, down)
        half = gate_up[0].data.shape[1] // 2
        gate, up = (replace(gate_up[0], data=data) for data in np.split(gate_up[0].data, [half], axis=1))
        return gate, up, down

    def read_ahead(self, layer: str, expert: int) -> None:
        if expert < self.count(layer):
            for raw in self._raw(layer, expert):
                advise(raw.data, mmap.MADV_WILLNEED)

    def forget(self, layer: str, expert: int) -> None:
        for raw in self._raw(layer, expert):
            advise(raw.data, mmap.MADV_DONTNEED)

    def _raw(self, layer: str, expert: int) -> tuple[RawMatrix, RawMatrix, RawMatrix]:
        gate_up = self._source.raw_expert(layer + _GATE_UP, expert)
        (down,) = self._source.raw_expert(layer + _DOWN, expert)
        if len(gate_up) == 2:
            return (*gate_up, down)
        joined = gate_up[0]
        half = len(joined.data) // 2
        gate, up = (
            RawMatrix(joined.type, joined.columns, data, joined.post_scale)
            for data in (joined.data[:half], joined.data[half:])
        )
        return gate, up, down


def _shape(raw: RawMatrix) -> tuple[int, int]:
    return len(raw.data), raw.columns


def _pack_raw(raw: RawMatrix) -> PackedMatrix:
    return by_gguf_type(raw.type.number).to_packed(raw.data, *_shape(raw), raw.post_scale)


def advise(view: np.ndarray, option: int) -> None:
    """Pass advice about the pages that a view of a memory map covers whole; a view of anything else is left alone."""
    found = map_of(view)
    if found is None or not view.flags.c_contiguous:
        return
    base, begin = found
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (begin + view.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0:
        base.madvise(option, first, size)


class StoredExperts(_NamedExperts):
    """Experts of published safetensors as they are stored: bf16 stays bf16, FP8 stays beside its scales."""

    _source: SafetensorsSource

    def __init__(self, source: SafetensorsSource) -> None:
        self._source = source
        self._layouts: dict[str, BlobLayout] = {}

    def layout(self, layer: str) -> BlobLayout:
        if layer not in self._layouts:
            self._layouts[layer] = layout_of(self.matrices(layer, 0))
        return self._layouts[layer]

    def matrices(self, layer: str, expert: int) -> ExpertMatrices:
        stored = self._source.raw_expert(layer + _GATE_UP, expert)
        (down,) = self._source.raw_expert(layer + _DOWN, expert)
        with _named(self._source, layer, expert):
            gate, up = self._halves(stored[0]) if len(stored) == 1 else [self._pack(each) for each in stored]
            return gate, up, self._pack(down)

    def published(self, layer: str) -> None:
        """They are not blocks."""

    def read_ahead(self, layer: str, expert: int) -> None:
        """Files are read with pread in their order: the system reads ahead by itself."""

    def forget(self, layer: str, expert: int) -> None:
        """Nothing is mapped."""

    def _halves(self, joined: StoredMatrix) -> list[PackedMatrix]:
        half = joined.weight.shape[0] // 2
        if joined.scale is None:
            return [self._pack(StoredMatrix(joined.code, part)) for part in joined.weight.split(half)]
        rows, columns = self._block()
        row_scales = joined.scale.repeat_interleave(rows, dim=0)[: 2 * half]  # a block may hold rows of both
        parts = zip(joined.weight.split(half), row_scales.split(half), strict=True)
        return [pack_fp8_blocks(weight, scale, (1, columns)) for weight, scale in parts]

    def _pack(self, stored: StoredMatrix) -> PackedMatrix:
        if stored.code == FP8:
            assert stored.scale is not None
            return pack_fp8_blocks(stored.weight, stored.scale, self._block())
        return by_name(stored.code).to_packed(stored.weight, *stored.weight.shape)

    def _block(self) -> tuple[int, int]:
        block = self._source.fp8_block
        assert block is not None  # the source was refused otherwise
        return block


class QuantizedExperts:
    """Experts of published safetensors quantized while they are read."""

    def __init__(self, source: QuantizingSource) -> None:
        self._stored = StoredExperts(source)
        self._source = source
        self._choice = source.choice

    def layers(self) -> tuple[str, ...]:
        return self._stored.layers()

    def count(self, layer: str) -> int:
        return self._stored.count(layer)

    def layout(self, layer: str) -> BlobLayout:
        _, hidden, width = self._source.shape(layer + _DOWN)
        inner = quantized_layout(self._choice, width, hidden, is_bf16=False)
        return BlobLayout(inner, inner, quantized_layout(self._choice, hidden, width, is_bf16=False))

    def matrices(self, layer: str, expert: int) -> ExpertMatrices:
        gate, up, down = (self._quantize(each) for each in self._stored.matrices(layer, expert))
        return gate, up, down

    def published(self, layer: str) -> None:
        """They are not stored as they are held."""

    def read_ahead(self, layer: str, expert: int) -> None:
        self._stored.read_ahead(layer, expert)

    def forget(self, layer: str, expert: int) -> None:
        self._stored.forget(layer, expert)

    def _quantize(self, stored: PackedMatrix) -> PackedMatrix:
        values: torch.Tensor = stored.decode()
        return quantize_matrix(values, self._choice)
