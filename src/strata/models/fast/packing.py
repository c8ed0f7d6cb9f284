"""A source's tensor as packed matrices in the code that it was published in, and what that takes in memory.

A GGUF file's blocks are packed as they are, FP8 keeps its scales, bf16 stays bf16; what has no code of its own is kept
in float32. The values are the published ones. Knows no architecture.
"""

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from strata.errors import WeightFileError
from strata.experts.blob import ExpertMatrices, layout_of
from strata.experts.sources import ExpertSource, advise, expert_layers, open_experts
from strata.native.packing import packs
from strata.quant.at_load import quantized_layout
from strata.quant.formats import by_gguf_type, by_name
from strata.quant.formats.base import Format
from strata.quant.formats.fp8_block import pack_fp8_blocks
from strata.quant.layout import TILE_ROWS, Array, BlobLayout, Code, MatrixLayout
from strata.quant.packed import PackedMatrix, pack, view_matrix
from strata.quant.packer import Packer
from strata.quant.rows import RowMajor
from strata.weights.experts import StoredMatrix
from strata.weights.gguf_source import GgufSource, RawMatrix
from strata.weights.header import FP8
from strata.weights.opening import ModelSource
from strata.weights.quantizing import QuantizingSource
from strata.weights.safetensors import SafetensorsSource
from strata.weights.source import WeightSource

FLOAT_CODES = ("F32", "BF16", "F16")  # as safetensors files write them
_CHUNK_WEIGHTS = 4 << 20  # packed at a time: some tens of MB of scratch, however large the matrix is


@dataclass(frozen=True)
class PackedTensor:
    """A matrix's parts under one another; column j belongs to input order[j] (None: as they stand)."""

    parts: tuple[PackedMatrix, ...]
    order: torch.Tensor | None = None  # [columns] int32


def pack_tensor(source: WeightSource, name: str, packer: Packer | None = None) -> PackedTensor:
    """A matrix of a source. Raises WeightFileError, with the source and the name, for what cannot be used.

    packer: the C++ library packs what it knows, to the same bytes; None: NumPy does.
    """
    if isinstance(source, GgufSource):
        return _pack_gguf(source, name, packer)
    if isinstance(source, QuantizingSource):
        quantized = source.packed(name)
        if quantized is not None:
            return PackedTensor((quantized,))
    if isinstance(source, SafetensorsSource) and source.stored_code(name) in (*FLOAT_CODES, FP8):
        stored = source.raw(name)
        with _named(source, name):
            return PackedTensor(tuple(_pack_stored(each, source.fp8_block, packer) for each in stored))
    return PackedTensor((pack_values(source.tensor(name, torch.float32)),))


def take_rows(parts: Sequence[PackedMatrix], rows: torch.Tensor) -> PackedMatrix:
    """Some rows of matrices under one another, in the order of `rows` [n] int64: the same codes in new tiles."""
    whole = [part.to_rows() for part in parts]
    first = parts[0]
    if len({(replace(part.layout, rows=1), part.post_scale) for part in parts}) > 1:
        return pack_values(torch.cat([part.decode() for part in parts])[rows])
    index = rows.numpy()
    words = np.concatenate([each.words for each in whole])[index]
    scales = {}
    for name in ("scales", "super_scales", "mins", "super_mins"):
        found = [getattr(each, name) for each in whole]
        scales[name] = None if found[0] is None else np.concatenate(found)[index]
    return pack(replace(first.layout, rows=len(index)), RowMajor(words, **scales), first.post_scale)


def packed_bytes(source: WeightSource, name: str) -> int:
    """Bytes that a matrix (or a layer's expert tensor) takes once it is packed, told from its size and type alone."""
    shape = source.shape(name)
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if isinstance(source, QuantizingSource):
        choice = source.choice_of(name)
        if choice is not None:
            return quantized_layout(choice, rows, columns).total_bytes
    if isinstance(source, GgufSource):
        if name in source.decoded_names():
            return 4 * rows * columns
        return sum(_grown(by_name(kind), size, columns) for kind, size in source.stored_types(name).items())
    if isinstance(source, SafetensorsSource):
        code = source.stored_code(name)
        block = source.fp8_block
        if code == FP8 and block is not None:
            return rows * columns + 4 * rows * -(-columns // block[1])
        if code in FLOAT_CODES:
            return source.stored_bytes(name)
    return 4 * rows * columns


def held_bytes_packed(source: WeightSource, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Bytes in memory of tensors with these shapes: matrices packed, vectors (and what is missing) in float32."""
    present = set(source.names())
    return {
        name: packed_bytes(source, name) if name in present and is_matrix(shape) else 4 * math.prod(shape)
        for name, shape in shapes.items()
    }


def is_matrix(shape: tuple[int, ...]) -> bool:
    """Whether a tensor is multiplied with or looked up: not a vector, not a convolution's taps [width, 1, kernel]."""
    return len(shape) > 1 and shape[0] > 1 and shape[1] > 1


def _grown(kind: Format, size: int, columns: int) -> int:
    return kind.layout(size // kind.row_bytes(columns), columns).total_bytes


@contextmanager
def _named(source: ModelSource, name: str) -> Iterator[None]:
    """Whoever packs bytes knows neither their file nor their name."""
    try:
        yield
    except WeightFileError as reason:
        raise WeightFileError(f"{source.directory}: {name}: {reason}") from reason


def _pack_gguf(source: GgufSource, name: str, packer: Packer | None) -> PackedTensor:
    blocks = source.raw(name)
    if blocks is not None:
        with _named(source, name):
            return PackedTensor(tuple(_pack_raw(raw, packer) for raw in blocks))
    in_file_order = source.raw_in_file_order(name)
    if in_file_order is not None:
        raw, order = in_file_order
        with _named(source, name):
            return PackedTensor((_pack_raw(raw, packer),), torch.from_numpy(order).int())
    return PackedTensor((pack_values(source.tensor(name, torch.float32)),))


def _pack_raw(raw: RawMatrix, packer: Packer | None) -> PackedMatrix:
    """A matrix of a file, by NumPy some rows at a time, so that no more than it and one chunk is held."""
    kind, rows = by_gguf_type(raw.type.number), len(raw.data)
    step = max(TILE_ROWS, _CHUNK_WEIGHTS // raw.columns // TILE_ROWS * TILE_ROWS)
    is_native = packer is not None and packs(kind.gguf_type)
    if is_native or kind.storage_of is not None or rows <= step:  # the whole matrix decides how its scales are stored
        return _forget(raw, kind.to_packed(raw.data, rows, raw.columns, raw.post_scale, packer))
    layout = kind.layout(rows, raw.columns)
    buffer = torch.empty(layout.total_bytes, dtype=torch.uint8)
    for first in range(0, rows, step):
        data = raw.data[first : first + step]
        part = kind.to_packed(data, len(data), raw.columns, raw.post_scale)
        whole = view_matrix(layout, buffer, layout.places(), part.post_scale)
        for array in Array:
            begin = layout.array_bytes(array) // layout.tiles * (first // TILE_ROWS)
            found = part.array(array)
            whole.array(array)[begin : begin + found.numel()] = found
        advise(data, mmap.MADV_DONTNEED)
    return whole


def _forget(raw: RawMatrix, packed: PackedMatrix) -> PackedMatrix:
    advise(raw.data, mmap.MADV_DONTNEED)
    return packed


def _pack_stored(stored: StoredMatrix, fp8_block: tuple[int, int] | None, packer: Packer | None) -> PackedMatrix:
    if stored.scale is not None and fp8_block is not None:
        return pack_fp8_blocks(stored.weight, stored.scale, fp8_block)
    rows, columns = stored.weight.shape
    return by_name(stored.code).to_packed(stored.weight, rows, columns, packer=packer)


def experts_of(source: WeightSource, layers: Sequence[str]) -> ExpertSource:
    """The experts of some layers, named by prefix."""
    if isinstance(source, SafetensorsSource | GgufSource):
        return _ChosenExperts(open_experts(source), layers)
    return _ChosenExperts(TensorExperts(source), layers)


class TensorExperts:
    """An `ExpertSource` over tensors in memory: float codes that hold their values exactly."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._open: tuple[str, torch.Tensor, torch.Tensor] | None = None  # a layer's tensors, while it is packed

    def layers(self) -> tuple[str, ...]:
        return expert_layers(self._source.names())

    def count(self, layer: str) -> int:
        return self._source.shape(f"{layer}experts.down_proj")[0]

    def layout(self, layer: str) -> BlobLayout:
        return layout_of(self.matrices(layer, 0))

    def matrices(self, layer: str, expert: int) -> ExpertMatrices:
        if self._open is None or self._open[0] != layer:
            names = (f"{layer}experts.gate_up_proj", f"{layer}experts.down_proj")
            gate_up, down = (self._source.tensor(name, torch.float32) for name in names)
            self._open = (layer, gate_up, down)
        _, gate_up, down = self._open
        code = exact_code(gate_up), exact_code(down)
        gate, up = gate_up[expert].chunk(2)
        return pack_values(gate, code[0]), pack_values(up, code[0]), pack_values(down[expert], code[1])

    def published(self, layer: str) -> None:
        """They lie in memory."""

    def read_ahead(self, layer: str, expert: int) -> None:
        """Nothing is read."""

    def forget(self, layer: str, expert: int) -> None:
        """Nothing is mapped."""


class _ChosenExperts:
    """An `ExpertSource` that shows only some layers of another."""

    def __init__(self, source: ExpertSource, layers: Sequence[str]) -> None:
        self._layers = tuple(layers)
        self.count, self.layout, self.matrices = source.count, source.layout, source.matrices
        self.published, self.read_ahead, self.forget = source.published, source.read_ahead, source.forget

    def layers(self) -> tuple[str, ...]:
        return self._layers


def pack_values(values: torch.Tensor, code: Code | None = None) -> PackedMatrix:
    """Values [rows, columns] in the smallest float code that holds them exactly: bf16, else f32."""
    values = values.float().contiguous()
    layout = MatrixLayout(values.shape[0], values.shape[1], code or exact_code(values))
    if layout.code is Code.BF16:
        return pack(layout, RowMajor(values.bfloat16().view(torch.int16).numpy().view(np.uint16)))
    return pack(layout, RowMajor(values.numpy()))


def exact_code(values: torch.Tensor) -> Code:
    """bf16 if it holds every value exactly, else f32."""
    low_bits = values.float().contiguous().view(torch.int32) & 0xFFFF
    return Code.F32 if bool(low_bits.any()) else Code.BF16
