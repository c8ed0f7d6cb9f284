"""A model without its values: every matrix in its storage code over one piece of zeros. See `Weights`.

For compiling kernels, which ask for shapes and codes alone. Reads headers and vectors of a source, hardly any matrix.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch

from strata.experts.sources import ExpertSource, expert_layers
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.models.blocks.linear import Weight
from strata.models.blocks.moe import Experts
from strata.models.device.held import (
    DeviceExperts,
    DeviceMatrices,
    DeviceTable,
    FileTable,
    blocks_in_order,
    order_by_block,
)
from strata.models.fast.packing import FLOAT_CODES, experts_of, pack_tensor, packed_bytes
from strata.models.weights import TableGather, TakenRows
from strata.quant.at_load import quantized_layout
from strata.quant.formats import by_gguf_type, by_name
from strata.quant.layout import BlobLayout, MatrixLayout
from strata.quant.packed import PackedMatrix, view_matrix
from strata.weights.gguf_source import GgufSource
from strata.weights.quantizing import QuantizingSource
from strata.weights.safetensors import SafetensorsSource
from strata.weights.source import WeightSource
from strata.weights.table_files import stored_table


class SkeletonWeights:
    """See `Weights`. Products with it are zero; an op that is given no row touches none of its bytes."""

    dtype = torch.float32

    def __init__(
        self, source: WeightSource, names: Collection[str], device: torch.device, *, reads_tables: bool = False
    ) -> None:
        """reads_tables: n-gram tables stay in their files, as `DeviceWeights` is told it."""
        self.device = device
        self._reads_tables = reads_tables
        self._source = source
        self._names = names
        self._zeros = torch.zeros(0, dtype=torch.uint8, device=device)

    def names(self) -> Collection[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._source.shape(name))

    def values(self, name: str) -> torch.Tensor:
        return self._source.tensor(name, self.dtype).contiguous()

    def matrix(self, *parts: str | TakenRows) -> Weight:
        if len(parts) == 1 and isinstance(parts[0], str):
            layouts, order = stored_layouts(self._source, parts[0])
            return DeviceMatrices(self._matrices(layouts), None if order is None else order.to(self.device))
        found = [layout for part in parts for layout in self._layouts(part)]
        return DeviceMatrices(self._matrices(found))

    def table(self, name: str) -> TableGather:
        if self._reads_tables and name.endswith(".ngram_embedding.weight"):
            return FileTable(stored_table(self._source, name), _no_rows)
        return DeviceTable(self._matrices(stored_layouts(self._source, name)[0]))

    def table_in_files(self, name: str) -> TableGather:
        return self.table(name)

    def experts(self, prefix: str) -> Experts:
        layer: ExpertSource = experts_of(self._source, (prefix,))
        layout = layer.layout(prefix)
        return DeviceExperts(ExpertBlobs(layout, self._room(layout.total_bytes)))

    def held_bytes(self, name: str) -> int:
        return packed_bytes(self._source, name)

    def _layouts(self, part: str | TakenRows) -> list[MatrixLayout]:
        if isinstance(part, str):
            return stored_layouts(self._source, part)[0]
        (layout,) = joined_layouts(stored_layouts(self._source, part.name)[0])
        return [replace(layout, rows=part.rows.numel())]

    def _matrices(self, layouts: list[MatrixLayout]) -> tuple[PackedMatrix, ...]:
        joined = joined_layouts(layouts)
        return tuple(view_matrix(layout, self._room(layout.total_bytes), layout.places()) for layout in joined)

    def _room(self, size: int) -> torch.Tensor:
        if self._zeros.numel() < size:
            self._zeros = torch.zeros(size, dtype=torch.uint8, device=self.device)
        return self._zeros[:size]


class SkeletonPlaces:
    """Where no expert lies, see `ExpertPlaces`: windows over no rows look for none."""

    is_pinned = True

    def __init__(self, source: WeightSource, names: Collection[str]) -> None:
        self._found = experts_of(source, expert_layers(names))
        self.layers = self._found.layers()
        self.resident = np.zeros((len(self.layers), self._found.count(self.layers[0])), np.int64)
        self.in_ram = self.resident.copy()

    def layout(self, layer: int) -> BlobLayout:
        """Of the blobs of one layer."""
        return self._found.layout(self.layers[layer])


def _no_rows(row_ids: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("a skeleton has no values")


def joined_layouts(layouts: list[MatrixLayout]) -> list[MatrixLayout]:
    """What `join_neighbours` makes of matrices of these layouts and of one factor."""
    joined: list[MatrixLayout] = []
    for layout in layouts:
        if joined and replace(joined[-1], rows=1) == replace(layout, rows=1):
            joined[-1] = replace(layout, rows=joined[-1].rows + layout.rows)
        else:
            joined.append(layout)
    return joined


def stored_layouts(source: WeightSource, name: str) -> tuple[list[MatrixLayout], torch.Tensor | None]:
    """The layouts and the order of blocks that a matrix of a source gets on a device.

    Told by its type and shape alone; what only its values can tell is packed to look.
    """
    if isinstance(source, GgufSource):
        found = _gguf_layouts(source, name)
        if found is not None:
            return found
    elif isinstance(source, SafetensorsSource):
        rows, columns = source.shape(name)
        if isinstance(source, QuantizingSource) and (choice := source.choice_of(name)) is not None:
            return [quantized_layout(choice, rows, columns, is_bf16=False)], None
        if source.stored_code(name) in FLOAT_CODES:
            return [by_name(source.stored_code(name)).layout(rows, columns)], None
    parts, order = order_by_block(pack_tensor(source, name))
    return [part.layout for part in parts], order


def _gguf_layouts(source: GgufSource, name: str) -> tuple[list[MatrixLayout], torch.Tensor | None] | None:
    raws, order = source.raw(name), None
    if raws is None:
        in_file_order = source.raw_in_file_order(name)
        if in_file_order is None:
            return None
        raws = (in_file_order[0],)
        order = blocks_in_order(torch.from_numpy(in_file_order[1]))
        if order is None:
            return None
    kinds = [by_gguf_type(raw.type.number) for raw in raws]
    if any(kind.storage_of is not None for kind in kinds):
        return None
    return [kind.layout(len(raw.data), raw.columns) for kind, raw in zip(kinds, raws, strict=True)], order
