"""How keys and values of one cell are stored: five kinds, each a code for keys and one for values. The definition.

Knows values, codes and scales; knows no attention, no slot and no device. C++ and Triton give these bits.
A *head* is the head_dim values of one key or value head of one cell, a *group* up to 64 of them side by side.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import partial
from typing import Any

import torch

HEAD_DIMS = (32, 64, 128, 256)  # powers of two: the rotation pairs values at strides that double
GROUP_COLUMNS = 64  # values that share a scale; a head of 32 is one group
MOST_SCALE = 65504.0  # the largest finite float16
MOST_LEVEL8, MOST_LEVEL4 = 127, 7
NIBBLE_ZERO = 8  # what a nibble of CODE4 holds for the level 0


class CellCode(Enum):
    """How one side, keys or values, is stored."""

    F32 = "f32"
    BF16 = "bf16"
    CODE8 = "code8"
    CODE4 = "code4"

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored codes."""
        return _DTYPES[self]

    @property
    def has_scales(self) -> bool:
        """Whether each group has a float16 scale beside its codes."""
        return self in (CellCode.CODE8, CellCode.CODE4)

    @property
    def is_rotated(self) -> bool:
        """Whether what is stored, and what `decode` gives, is the rotated head."""
        return self is CellCode.CODE4

    def code_columns(self, head_dim: int) -> int:
        """Elements of `dtype` that hold a head."""
        return head_dim // 2 if self is CellCode.CODE4 else head_dim

    def code_bytes(self, head_dim: int) -> int:
        """Bytes of a head's codes."""
        return self.code_columns(head_dim) * self.dtype.itemsize

    def groups(self, head_dim: int) -> int:
        """Scales of a head: 0 where there are none."""
        return max(1, head_dim // GROUP_COLUMNS) if self.has_scales else 0

    def head_bytes(self, head_dim: int) -> int:
        """Bytes of a head's codes and scales."""
        return self.code_bytes(head_dim) + self.groups(head_dim) * torch.float16.itemsize


_DTYPES = {
    CellCode.F32: torch.float32,
    CellCode.BF16: torch.bfloat16,
    CellCode.CODE8: torch.int8,
    CellCode.CODE4: torch.uint8,
}


class CellKind(StrEnum):
    """How keys and values are stored."""

    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"
    K8V4 = "k8v4"
    Q4 = "q4"

    @property
    def keys(self) -> CellCode:
        """The code of keys."""
        return _SIDES[self][0]

    @property
    def values(self) -> CellCode:
        """The code of values."""
        return _SIDES[self][1]

    def head_bytes(self, head_dim: int) -> int:
        """Bytes of one head's key and value."""
        return self.keys.head_bytes(head_dim) + self.values.head_bytes(head_dim)


_SIDES = {
    CellKind.F32: (CellCode.F32, CellCode.F32),
    CellKind.BF16: (CellCode.BF16, CellCode.BF16),
    CellKind.INT8: (CellCode.CODE8, CellCode.CODE8),
    CellKind.K8V4: (CellCode.CODE8, CellCode.CODE4),
    CellKind.Q4: (CellCode.CODE4, CellCode.CODE4),
}


@dataclass(frozen=True)
class CellRows:
    """Stored heads of one side: codes [..., code_columns], and where the code has scales float16 [..., groups]."""

    codes: torch.Tensor
    scales: torch.Tensor | None = None

    @classmethod
    def zeros(cls, code: CellCode, *sizes: int, head_dim: int, device: torch.device | str = "cpu") -> "CellRows":
        """Rows of `sizes` heads, all bytes zero: every code decodes them to zeros."""
        make = partial(torch.zeros, device=device)
        scales = make(*sizes, code.groups(head_dim), dtype=torch.float16) if code.has_scales else None
        return cls(make(*sizes, code.code_columns(head_dim), dtype=code.dtype), scales)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Codes, and scales where there are any."""
        return (self.codes,) if self.scales is None else (self.codes, self.scales)

    def __getitem__(self, place: Any) -> "CellRows":
        """The same place of codes and scales: views where torch gives views."""
        return CellRows(self.codes[place], None if self.scales is None else self.scales[place])

    def __setitem__(self, place: Any, rows: "CellRows") -> None:
        self.codes[place] = rows.codes
        if self.scales is not None and rows.scales is not None:
            self.scales[place] = rows.scales


def rotate(x: torch.Tensor) -> torch.Tensor:
    """float32 [..., head_dim] -> the same after an orthonormal Walsh-Hadamard rotation; up to rounding its own inverse.

    Strides 1, 2, 4 .. head_dim / 2 after each other: the pair (a, b) becomes (a + b, a - b); at last one product with
    float32(head_dim ** -0.5). Raises ValueError for another head_dim than 32, 64, 128 or 256.
    """
    head_dim = _check_head_dim(x.shape[-1])
    stride = 1
    while stride < head_dim:
        first, second = x.reshape(*x.shape[:-1], -1, 2, stride).unbind(-2)
        x = torch.stack((first + second, first - second), dim=-2).flatten(-3)
        stride *= 2
    return x * torch.tensor(head_dim**-0.5, dtype=torch.float32, device=x.device)


def encode(code: CellCode, x: torch.Tensor) -> CellRows:
    """float32 [..., head_dim] -> what is stored of it. Heads that are not finite give some codes, never an error.

    Raises ValueError for another type, and where there are scales for another head_dim than 32, 64, 128 or 256.
    """
    if x.dtype != torch.float32:
        raise ValueError(f"heads to encode must be float32, not {x.dtype}")
    if not code.has_scales:
        return CellRows(x.to(code.dtype))
    _check_head_dim(x.shape[-1])
    if code is CellCode.CODE8:
        levels, scales = _levels(x, MOST_LEVEL8)
        return CellRows(levels.to(torch.int8), scales)
    levels, scales = _levels(rotate(x), MOST_LEVEL4)
    low, high = (levels.to(torch.int32) + NIBBLE_ZERO).chunk(2, dim=-1)
    return CellRows((low | high << 4).to(torch.uint8), scales)


def decode(code: CellCode, rows: CellRows, head_dim: int) -> torch.Tensor:
    """float32 [..., head_dim] of stored heads; of CODE4 rotated ones. Raises ValueError for other sizes or types."""
    check_rows("rows", code, rows, head_dim)
    if not code.has_scales:
        return rows.codes.float()
    levels = rows.codes
    if code is CellCode.CODE4:
        levels = torch.cat((levels & 15, levels >> 4), dim=-1).to(torch.int32) - NIBBLE_ZERO
    assert rows.scales is not None  # checked
    return (levels.float().unflatten(-1, (code.groups(head_dim), -1)) * rows.scales.float()[..., None]).flatten(-2)


def check_rows(name: str, code: CellCode, rows: CellRows, head_dim: int) -> None:
    """Raises ValueError where `rows` cannot be stored heads of this code and size."""
    if code.has_scales:
        _check_head_dim(head_dim)
    columns, groups = code.code_columns(head_dim), code.groups(head_dim)
    if rows.codes.dtype != code.dtype or rows.codes.shape[-1] != columns:
        raise ValueError(
            f"{name}: codes of {code.value} must be {code.dtype} of {columns} columns, "
            f"not {rows.codes.dtype} of {rows.codes.shape[-1]}"
        )
    if rows.scales is None or not groups:
        if groups or rows.scales is not None:
            raise ValueError(f"{name}: {code.value} has {groups} scales a head, these rows {_scale_words(rows)}")
        return
    sizes = (*rows.codes.shape[:-1], groups)
    if rows.scales.dtype != torch.float16 or rows.scales.shape != sizes:
        raise ValueError(f"{name}: scales of {code.value} must be float16 {sizes}, not {_scale_words(rows)}")


def _levels(x: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers from -most to most as float32 [..., head_dim], and the groups' scales float16 [..., groups]."""
    groups = x.unflatten(-1, (-1, min(GROUP_COLUMNS, x.shape[-1])))
    divisor = torch.tensor(float(most), device=x.device)  # a plain number would be a product with 1 / most on a GPU
    scales = (groups.abs().amax(dim=-1) / divisor).clamp(max=MOST_SCALE).half()
    step = scales.float()[..., None]
    levels = torch.where(step == 0, 0.0, (groups / step).round().clamp(-most, most))
    return levels.nan_to_num().flatten(-2), scales


def _scale_words(rows: CellRows) -> str:
    return "none" if rows.scales is None else f"{rows.scales.dtype} {tuple(rows.scales.shape)}"


def _check_head_dim(head_dim: int) -> int:
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim must be one of {', '.join(map(str, HEAD_DIMS))}, not {head_dim}")
    return head_dim
