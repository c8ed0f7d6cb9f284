"""A model's matrices by canonical name in the code that they were published in, ready for the C++ library.

A GGUF file's blocks are packed as they are, FP8 keeps its scales, bf16 stays bf16; whatever has no code of its own is
kept in float32. The values are those that a read computes with. Knows no architecture.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from strata.errors import EngineError
from strata.experts.arena import Arena, load_arena
from strata.experts.blob import ExpertMatrices, layout_of
from strata.experts.pool import native_layout
from strata.experts.sources import ExpertSource, expert_layers, open_experts
from strata.kernels.packed_rows.native import native_matrix
from strata.native import abi, mixers
from strata.quant.formats import by_gguf_type, by_name
from strata.quant.formats.fp8_block import pack_fp8_blocks
from strata.quant.layout import BlobLayout, Code, MatrixLayout
from strata.quant.packed import PackedMatrix, pack
from strata.quant.rows import RowMajor
from strata.types import ProgressCallback
from strata.weights.gguf_source import GgufSource
from strata.weights.header import FP8
from strata.weights.quantizing import QuantizingSource
from strata.weights.safetensors import SafetensorsSource
from strata.weights.source import WeightSource

FLOAT_CODES = ("F32", "BF16", "F16")  # as safetensors files write them


class MatrixReader:
    """Reads matrices for one model and keeps alive what the C++ side points to."""

    def __init__(
        self, source: WeightSource, expert_prefixes: Sequence[str], on_progress: ProgressCallback | None = None
    ) -> None:
        """`expert_prefixes`: the layers whose experts are packed, as in `model.layers.3.mlp.`; they are read now."""
        self._source = source
        self._kept: list[Any] = []
        self._named: dict[str, list[abi.Matrix]] = {}  # a tied head and a draft layer ask for a matrix again
        self._experts: Arena | None = None
        if expert_prefixes:
            self._experts = load_arena(_ChosenExperts(_experts_of(source), expert_prefixes), on_progress=on_progress)

    def keep(self, value: Any) -> Any:
        """Hold on to something that the C++ side points to."""
        self._kept.append(value)
        return value

    def pointer(self, values: torch.Tensor | None) -> int | None:
        """The address of float32 values (float64, int64 as they are), which are kept; None stays None."""
        if values is None:
            return None
        if values.dtype not in (torch.float64, torch.int64):
            values = values.float()
        kept: torch.Tensor = self.keep(values.contiguous())
        return kept.data_ptr()

    def has_all(self, names: Sequence[str]) -> bool:
        """Whether the source holds every one of these tensors."""
        return set(names) <= set(self._source.names())

    def matrices(self, *names: str) -> mixers.Matrices:
        """The named tensors on top of each other, as matrices that share their input."""
        for name in names:
            if name not in self._named:
                self._named[name] = [self._native(part) for part in self._parts(name)]
        return _group([part for name in names for part in self._named[name]])

    def rows_of(self, tensor: torch.Tensor) -> mixers.Matrices:
        """A matrix that no source publishes by itself, from its values."""
        return _group([self._native(pack_values(tensor))])

    def experts(self, prefix: str) -> tuple[int, int]:
        """A layer's experts: addresses of their `abi.ExpertLayout` and of the array of blobs."""
        assert self._experts is not None
        layer = self._experts.layers[prefix]
        layout = self.keep(native_layout(layer.layout))
        addresses = (self._experts.address(prefix, expert) for expert in range(layer.count))
        blobs = self.keep((ctypes.c_void_p * layer.count)(*addresses))
        return ctypes.addressof(layout), ctypes.addressof(blobs)

    def _native(self, packed: PackedMatrix) -> abi.Matrix:
        native = native_matrix(packed)
        self.keep(native)
        return native.struct

    def _parts(self, name: str) -> list[PackedMatrix]:
        source = self._source
        quantized = source.packed(name) if isinstance(source, QuantizingSource) else None
        if quantized is not None:
            return [quantized]
        if isinstance(source, GgufSource):
            blocks = source.raw(name)
            if blocks is not None:
                types = [by_gguf_type(part.type.number) for part in blocks]
                parts = zip(types, blocks, strict=True)
                return [kind.to_packed(raw.data, len(raw.data), raw.columns, raw.post_scale) for kind, raw in parts]
        elif isinstance(source, SafetensorsSource) and source.stored_code(name) in (*FLOAT_CODES, FP8):
            found = []
            for stored in source.raw(name):
                if stored.scale is not None and source.fp8_block is not None:
                    found.append(pack_fp8_blocks(stored.weight, stored.scale, source.fp8_block))
                else:
                    found.append(by_name(stored.code).to_packed(stored.weight, *stored.weight.shape))
            return found
        return [pack_values(source.tensor(name, torch.float32))]


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

    def read_ahead(self, layer: str, expert: int) -> None:
        """Nothing is read."""

    def forget(self, layer: str, expert: int) -> None:
        """Nothing is mapped."""


class _ChosenExperts:
    """An `ExpertSource` that shows only some layers of another."""

    def __init__(self, source: ExpertSource, layers: Sequence[str]) -> None:
        self._layers = tuple(layers)
        self.count, self.layout, self.matrices = source.count, source.layout, source.matrices
        self.read_ahead, self.forget = source.read_ahead, source.forget

    def layers(self) -> tuple[str, ...]:
        return self._layers


def _experts_of(source: WeightSource) -> ExpertSource:
    return open_experts(source) if isinstance(source, SafetensorsSource | GgufSource) else TensorExperts(source)


def _group(parts: Sequence[abi.Matrix]) -> mixers.Matrices:
    if len(parts) > mixers.MOST_PARTS:
        raise EngineError(f"{len(parts)} matrices share an input; the native library takes {mixers.MOST_PARTS}")
    group = mixers.Matrices(len(parts), sum(part.rows for part in parts))
    for index, part in enumerate(parts):
        group.parts[index] = ctypes.addressof(part)
    return group


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
