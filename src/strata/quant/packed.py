"""One packed matrix: its description and its arrays, made from rows and turned back into float32.

Knows every storage code; knows no published format, no file and no C++.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from strata.quant import code2, code4, code8, float_codes
from strata.quant.layout import Array, Code, MatrixLayout, MinKind, Place, ScaleKind
from strata.quant.rows import AnyArray, RowMajor, from_tiles, to_tiles

_INTEGER_CODES: dict[Code, ModuleType] = {Code.CODE2: code2, Code.CODE4: code4, Code.CODE8: code8}
_SCALE_TYPES: dict[ScaleKind, type] = {
    ScaleKind.F16: np.uint16,
    ScaleKind.E8M0: np.uint8,
    ScaleKind.UE4M3: np.uint8,
    ScaleKind.SUPER: np.int8,
    ScaleKind.F32: np.float32,
}
_MIN_TYPES: dict[MinKind, type] = {MinKind.F16: np.uint16, MinKind.SUPER: np.uint8}


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in a storage code. Each array is a one-dimensional uint8 tensor, of length 0 if there is none.

    The tensors may be views of one buffer, of a blob or of an arena; nobody writes through them.
    """

    layout: MatrixLayout
    codes: torch.Tensor
    scales: torch.Tensor
    super_scales: torch.Tensor
    mins: torch.Tensor
    super_mins: torch.Tensor
    post_scale: float = 1.0  # a float32

    def array(self, array: Array) -> torch.Tensor:
        """One of the five arrays."""
        return (self.codes, self.scales, self.super_scales, self.mins, self.super_mins)[array]

    def decode(self) -> torch.Tensor:
        """The weights: float32 [rows, columns], (scale * integer - minimum) * post_scale, each step rounded.

        Computed in main memory; they lie where the arrays do.
        """
        values = torch.from_numpy(decode_rows(self.layout, self.to_rows(), self.post_scale))
        return values.to(self.codes.device)

    def to_rows(self) -> RowMajor:
        """The arrays with rows first, as `pack` took them; copies if they lie on a device."""
        layout = self.layout
        rows = layout.rows

        def read(array: Array, dtype: type, *shape: int) -> AnyArray:
            return from_tiles(self.array(array).cpu().numpy(), dtype, rows, *shape)

        if layout.code.is_float:
            words = read(Array.CODES, float_codes.CARRIERS[layout.code], layout.columns)
        else:
            words = read(Array.CODES, np.uint32, layout.blocks, _INTEGER_CODES[layout.code].WORDS)
        has_super_scales, has_super_mins = layout.scale_kind is ScaleKind.SUPER, layout.min_kind is MinKind.SUPER
        scale_type, min_type = _SCALE_TYPES.get(layout.scale_kind), _MIN_TYPES.get(layout.min_kind)
        return RowMajor(
            words,
            read(Array.SCALES, scale_type, layout.sub_blocks) if scale_type else None,
            read(Array.SUPER_SCALES, np.uint16, layout.super_blocks) if has_super_scales else None,
            read(Array.MINS, min_type, layout.sub_blocks) if min_type else None,
            read(Array.SUPER_MINS, np.uint16, layout.super_blocks) if has_super_mins else None,
        )

    def copy_arrays_from(self, other: "PackedMatrix") -> None:
        """Overwrite the arrays' bytes with another matrix of the same layout: how a blob is filled."""
        if other.layout != self.layout:
            raise ValueError(f"a matrix of {other.layout} does not go into {self.layout}")
        for array in Array:
            self.array(array).copy_(other.array(array))


def view_matrix(
    layout: MatrixLayout, buffer: torch.Tensor, places: dict[Array, Place], post_scale: float = 1.0
) -> PackedMatrix:
    """A matrix whose arrays lie in `buffer` (uint8) at `places`."""
    codes, scales, super_scales, mins, super_mins = (
        buffer[places[array].offset : places[array].offset + places[array].size] for array in Array
    )
    return PackedMatrix(layout, codes, scales, super_scales, mins, super_mins, post_scale)


def pack(layout: MatrixLayout, rows: RowMajor, post_scale: float = 1.0) -> PackedMatrix:
    """Cut the arrays into tiles. Raises ValueError if an array's size is not what the layout says."""
    arrays = []
    for array, values in zip(
        Array, (rows.words, rows.scales, rows.super_scales, rows.mins, rows.super_mins), strict=True
    ):
        tiled = np.empty(0, np.uint8) if values is None else to_tiles(values)
        if tiled.size != layout.array_bytes(array):
            raise ValueError(f"{array.name} of {layout} has {tiled.size} bytes, not {layout.array_bytes(array)}")
        arrays.append(torch.from_numpy(tiled))
    codes, scales, super_scales, mins, super_mins = arrays
    return PackedMatrix(layout, codes, scales, super_scales, mins, super_mins, float(np.float32(post_scale)))


def join_codes(code: Code, codes: NDArray[np.generic]) -> NDArray[np.uint32]:
    """Table indices (code2, code4: uint8) or integers (code8: int8) [rows, columns] -> row-major words."""
    return _INTEGER_CODES[code].join(codes)


def integers_of(layout: MatrixLayout, rows: RowMajor) -> NDArray[np.int8]:
    """The integers [rows, columns] that an integer code's words mean."""
    codes = _INTEGER_CODES[layout.code].split(rows.words)
    return np.array(layout.table, np.int8)[codes] if layout.table else codes


def scale_values(layout: MatrixLayout, rows: RowMajor) -> NDArray[np.float32]:
    """The exact scale of every sub-block, float32 [rows, sub_blocks]."""
    assert rows.scales is not None
    if layout.scale_kind is ScaleKind.SUPER:
        assert rows.super_scales is not None
        return _times_super(rows.scales, rows.super_scales)
    if layout.scale_kind is ScaleKind.F16:
        return rows.scales.view(np.float16).astype(np.float32)
    if layout.scale_kind is ScaleKind.E8M0:
        bits = rows.scales.astype(np.uint32)
        return np.where(bits == 0, np.uint32(1 << 22), bits << 23).astype(np.uint32).view(np.float32)
    if layout.scale_kind is ScaleKind.UE4M3:
        return float_codes.widen(rows.scales, Code.FP8)
    return rows.scales.view(np.float32)


def min_values(layout: MatrixLayout, rows: RowMajor) -> NDArray[np.float32] | None:
    """The exact minimum of every sub-block, float32 [rows, sub_blocks]; None if the layout has none."""
    if rows.mins is None:
        return None
    if layout.min_kind is MinKind.SUPER:
        assert rows.super_mins is not None
        return _times_super(rows.mins, rows.super_mins)
    return rows.mins.view(np.float16).astype(np.float32)


def _times_super(small: AnyArray, super_bits: AnyArray) -> NDArray[np.float32]:
    wide = super_bits.view(np.float16).astype(np.float32)
    grouped = small.astype(np.float32).reshape(*wide.shape, -1)
    return (grouped * wide[..., None]).reshape(small.shape)


def decode_rows(layout: MatrixLayout, rows: RowMajor, post_scale: float) -> NDArray[np.float32]:
    """The weights, float32 [rows, columns]."""
    if layout.code.is_float:
        values = float_codes.widen(rows.words, layout.code)
        if layout.code is Code.FP8:
            values *= np.repeat(scale_values(layout, rows), layout.sub_block, axis=1)[:, : layout.columns]
    else:
        grouped = integers_of(layout, rows).astype(np.float32).reshape(layout.rows, layout.sub_blocks, -1)
        with np.errstate(over="ignore"):  # the largest e8m0 scales make published weights infinite
            grouped *= scale_values(layout, rows)[..., None]
        minimum = min_values(layout, rows)
        if minimum is not None:
            grouped -= minimum[..., None]
        values = grouped.reshape(layout.rows, layout.columns)
    return values if post_scale == 1.0 else values * np.float32(post_scale)
