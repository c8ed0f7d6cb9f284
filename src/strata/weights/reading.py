"""Bytes of weight files into tensors: whole pieces, converted or decoded a chunk at a time.

Knows offsets, storage types and FP8 blocks; knows no canonical name. Files are read with pread: a disk error is then a
sentence, where through a memory map it would end the process.
"""

import os
from collections.abc import Callable

import numpy as np
import torch

from strata.errors import WeightFileError
from strata.weights.fp8 import decode_rows
from strata.weights.header import FP8, StoredTensor
from strata.weights.json_files import reason_of
from strata.weights.layout import Piece

_CHUNK_BYTES = 32 << 20  # read and converted at a time

OnBytes = Callable[[int], None]


def read_piece(piece: Piece, block: tuple[int, int] | None, out: torch.Tensor, on_bytes: OnBytes) -> None:
    """Fill `out`, contiguous and of the piece's shape, with its values in out's dtype; FP8 is decoded.

    `on_bytes` is told how many stored bytes each step read. Raises WeightFileError if the file cannot be read or
    holds values that are not finite.
    """
    stored = piece.stored
    if stored.code == FP8:
        assert piece.scale is not None and block is not None  # the layout was refused otherwise
        _read_fp8(stored, read_scale(piece.scale), block, out, on_bytes)
        on_bytes(piece.scale.stored_bytes)
    elif out.dtype == stored.dtype:
        _read_bytes(stored, 0, out.reshape(-1), on_bytes)
    else:
        _read_converted(stored, out.reshape(-1), on_bytes)
    check_finite(out, stored)


def read_scale(scale: StoredTensor) -> torch.Tensor:
    """The block scales of a weight in float32."""
    raw = torch.empty(scale.shape, dtype=scale.dtype)
    _read_bytes(scale, 0, raw.reshape(-1), lambda _: None)
    check_finite(raw, scale)
    return raw.float()


def check_finite(values: torch.Tensor, stored: StoredTensor) -> None:
    """Refuse NaN and infinity. One pass without a copy: NaN and infinity survive in a minimum or maximum."""
    if not values.is_floating_point() or values.numel() == 0:
        return
    low, high = torch.aminmax(values)
    if torch.isfinite(low) and torch.isfinite(high):
        return
    flat = values.reshape(-1)
    bad = int((~torch.isfinite(flat)).nonzero()[0])
    where = [int(index) for index in np.unravel_index(bad, values.shape)] if values.dim() else []
    raise WeightFileError(
        f"{stored.file}: tensor {stored.name} holds a value that is not finite: {flat[bad].item()} at {where}"
        f", read as {str(values.dtype).removeprefix('torch.')}"
    )


def _read_bytes(stored: StoredTensor, first_value: int, out: torch.Tensor, on_bytes: OnBytes) -> None:
    """Fill the flat `out` with stored values from `first_value` on, as they are."""
    if out.numel() == 0:
        return
    target = memoryview(out.view(torch.uint8).numpy().data)
    position = stored.begin + first_value * stored.dtype.itemsize
    try:
        descriptor = os.open(stored.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while target:
                count = os.preadv(descriptor, [target[:_CHUNK_BYTES]], position)
                if count == 0:
                    raise WeightFileError(f"{stored.file} ended while tensor {stored.name} was read: did it change?")
                target, position = target[count:], position + count
                on_bytes(count)
        finally:
            os.close(descriptor)
    except OSError as failure:
        raise WeightFileError(f"{stored.file} cannot be read: {reason_of(failure)} (tensor {stored.name})") from None


def _read_converted(stored: StoredTensor, out: torch.Tensor, on_bytes: OnBytes) -> None:
    """Fill the flat `out` with stored values converted to its dtype, a chunk at a time."""
    step = _CHUNK_BYTES // stored.dtype.itemsize
    for begin in range(0, out.numel(), step):
        target = out[begin : begin + step]
        raw = torch.empty(target.numel(), dtype=stored.dtype)
        _read_bytes(stored, begin, raw, on_bytes)
        target.copy_(raw)


def _read_fp8(
    stored: StoredTensor, scale: torch.Tensor, block: tuple[int, int], out: torch.Tensor, on_bytes: OnBytes
) -> None:
    """Fill `out` [.., rows, columns] with decoded values, matrix by matrix and a chunk of rows at a time."""
    rows, columns = stored.shape[-2:]
    step = max(1, _CHUNK_BYTES // max(1, columns))
    matrices = out.reshape(-1, rows, columns)
    scales = scale.reshape(-1, *scale.shape[-2:])
    for index, (matrix, its_scale) in enumerate(zip(matrices, scales, strict=True)):
        for begin in range(0, rows, step):
            end = min(rows, begin + step)
            raw = torch.empty((end - begin) * columns, dtype=stored.dtype)
            _read_bytes(stored, (index * rows + begin) * columns, raw, on_bytes)
            matrix[begin:end] = decode_rows(raw.view(-1, columns), its_scale, block, torch.arange(begin, end))
