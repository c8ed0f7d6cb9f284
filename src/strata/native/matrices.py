"""Packed matrices for the native library: ctypes structs over tensors, and matrix x rows through a pool.

Knows sizes, strides and who keeps the bytes alive; what the codes mean is docs/storage-codes.md.
"""

import ctypes
from collections.abc import Sequence

import torch

from strata.native import abi, library
from strata.native.pool import Pool

CODES = {"code2": 2, "code4": 4, "code8": 8, "f32": 100, "bf16": 101, "f16": 102, "fp8": 103}


def matrix_form(
    code: str,
    rows: int,
    columns: int,
    *,
    sub_block: int = 32,
    scale_kind: int = 0,
    min_kind: int = 0,
    table: Sequence[int] = (),
    post_scale: float = 1.0,
) -> abi.Matrix:
    """A matrix's description without its arrays, as `abi.ExpertLayout` takes it."""
    form = abi.Matrix(CODES[code], scale_kind, min_kind, sub_block, rows, columns)
    form.table[: len(table)] = list(table)
    form.post_scale = post_scale
    return form


class NativeMatrix:
    """A form with its arrays. Keeps the tensors alive and copies those that do not begin at a multiple of 64 bytes."""

    def __init__(self, form: abi.Matrix, arrays: Sequence[torch.Tensor]) -> None:
        """`arrays`: codes, scales, super scales, mins, super mins, contiguous on the CPU; empty where there is none."""
        self.struct = form
        self._arrays = [_aligned(array) for array in arrays]
        names = ("codes", "scales", "super_scales", "mins", "super_mins")
        for name, array in zip(names, self._arrays, strict=True):
            setattr(form, name, array.data_ptr() if array.numel() else None)
        library.check(library.load().strata_matrix_check(ctypes.byref(form)))

    @property
    def rows(self) -> int:
        """Outputs."""
        return self.struct.rows

    @property
    def columns(self) -> int:
        """Inputs."""
        return self.struct.columns


def matrix_rows(pool: Pool, matrix: NativeMatrix, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    """x float32 [n, columns] -> float32 [n, rows], into `y` if it is given."""
    return matrices_rows(pool, [matrix], x, None if y is None else [y])[0]


def matrices_rows(
    pool: Pool, matrices: Sequence[NativeMatrix], x: torch.Tensor, ys: Sequence[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """Several matrices times the same rows: x is quantized once and all threads share one list of work."""
    columns = matrices[0].columns
    _check_rows("x", x, x.shape[0], columns)
    if ys is None:
        ys = [x.new_empty(x.shape[0], matrix.rows) for matrix in matrices]
    products = (abi.Product * len(matrices))()
    for product, matrix, y in zip(products, matrices, ys, strict=True):
        _check_rows("y", y, x.shape[0], matrix.rows)
        product.matrix = ctypes.pointer(matrix.struct)
        product.y, product.y_stride = y.data_ptr(), y.stride(0)
    call = library.load().strata_matrices_rows
    library.check(call(pool.handle, products, len(matrices), x.data_ptr(), x.shape[0], x.stride(0)))
    return list(ys)


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One row float32 [columns] -> int8 [columns] and float32 [columns / 32]: what packed codes are multiplied with."""
    q = torch.empty(x.numel(), dtype=torch.int8)
    d = torch.empty(x.numel() // 32, dtype=torch.float32)
    x = x.contiguous()
    library.check(library.load().strata_quantize(x.data_ptr(), x.numel(), q.data_ptr(), d.data_ptr()))
    return q, d


def _check_rows(name: str, rows: torch.Tensor, count: int, width: int) -> None:
    """Raises ValueError unless `rows` is float32 [count, width] in main memory whose rows are contiguous."""
    good = rows.dtype == torch.float32 and rows.device.type == "cpu" and tuple(rows.shape) == (count, width)
    if not good or (width > 1 and rows.stride(1) != 1):
        raise ValueError(f"{name} must be float32 [{count}, {width}], not {rows.dtype} {list(rows.shape)}")


def _aligned(array: torch.Tensor) -> torch.Tensor:
    if not array.is_contiguous() or array.device.type != "cpu":
        raise ValueError("the arrays of a matrix must be contiguous and in main memory")
    if array.numel() == 0 or array.data_ptr() % 64 == 0:
        return array
    size = array.numel() * array.element_size()
    room = torch.empty(size + 64, dtype=torch.uint8)
    begin = -room.data_ptr() % 64
    copy = room[begin : begin + size].view(array.dtype)
    copy.copy_(array.flatten())
    return copy
