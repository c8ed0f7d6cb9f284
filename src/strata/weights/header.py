"""The header of one safetensors file: which tensor lies where, checked before anything is used.

Knows the published format (8 bytes of length, JSON, data without holes); knows neither names nor models.
"""

import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from strata.errors import WeightFileError
from strata.weights.json_files import parse_json_object, reason_of

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own reader
_MAX_DIMENSIONS = 32

# Every storage type that the format has had, in bits, so that a file's sizes can be checked even where a type is
# one that Strata does not read.
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
FP8 = "F8_E4M3"
TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    FP8: torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODE_OF_DTYPE = {dtype: code for code, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as a file holds it. `begin` and `end` are byte offsets from the start of the file."""

    name: str
    file: Path
    code: str  # the format's word for the storage type: "BF16", "F8_E4M3"
    shape: tuple[int, ...]
    begin: int
    end: int
    opened: os.stat_result | None = field(default=None, compare=False, repr=False)  # of the file behind its header

    @property
    def stored_bytes(self) -> int:
        return self.end - self.begin

    @property
    def dtype(self) -> torch.dtype:
        """The torch type. Raises WeightFileError for a storage type that Strata does not read."""
        if self.code not in TORCH_DTYPES:
            raise WeightFileError(
                f"{self.file}: tensor {self.name} is stored as {self.code}, which is not supported; supported: "
                f"{', '.join(TORCH_DTYPES)}"
            )
        return TORCH_DTYPES[self.code]


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file by its published name; reads the header only.

    Raises WeightFileError if the file is missing, not readable, truncated, longer than it says, or if its header
    is not what the format asks for.
    """
    data, opened = _read_header_bytes(file)
    entries = parse_json_object(data, f"the header of {file}", WeightFileError)
    entries.pop("__metadata__", None)
    start = 8 + len(data)
    tensors = {name: _read_entry(file, name, entry, start, opened) for name, entry in entries.items()}
    _check_extents(file, tensors, start, opened.st_size)
    return tensors


def _read_header_bytes(file: Path) -> tuple[bytes, os.stat_result]:
    """The header's JSON bytes, and what the system says of the file."""
    try:
        # Without O_NONBLOCK a FIFO of that name would wait for a writer for ever.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as failure:
        raise WeightFileError(f"{file} cannot be read: {reason_of(failure)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise WeightFileError(f"{file} is not a regular file")
        size = status.st_size
        if size < 8:
            raise WeightFileError(f"{file} is truncated: it holds {size} bytes, a safetensors file has at least 10")
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        if length > MAX_HEADER_BYTES:
            raise WeightFileError(
                f"{file} is no safetensors file: it says that its header takes {length:,} bytes, the format allows "
                f"{MAX_HEADER_BYTES:,}"
            )
        if 8 + length > size:
            raise WeightFileError(
                f"{file} is truncated: its header takes {8 + length:,} bytes, the file holds {size:,}; "
                "download it again"
            )
        return os.pread(descriptor, length, 8), status
    except OSError as failure:
        raise WeightFileError(f"{file} cannot be read: {reason_of(failure)}") from None
    finally:
        os.close(descriptor)


def _read_entry(file: Path, name: str, entry: Any, start: int, opened: os.stat_result) -> StoredTensor:
    """One line of the header. `start` is the offset of the first data byte in the file."""
    where = f"the header of {file}: tensor {name!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise WeightFileError(f"{where} has no dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPE_BITS:
        raise WeightFileError(f"{where} has dtype {str(code)[:40]!r}, which the format does not have")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise WeightFileError(f"{where} has shape {str(shape)[:80]}, which is not a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise WeightFileError(f"{where} has data_offsets {str(offsets)[:80]}, which is not a range")
    needed = (math.prod(shape) * DTYPE_BITS[code] + 7) // 8
    if offsets[1] - offsets[0] != needed:
        raise WeightFileError(
            f"{where} takes {offsets[1] - offsets[0]:,} bytes, its shape {shape} of {code} needs {needed:,}"
        )
    return StoredTensor(name, file, code, tuple(shape), start + offsets[0], start + offsets[1], opened)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(item) is int and item >= 0 for item in values)  # a bool is no size


def _check_extents(file: Path, tensors: dict[str, StoredTensor], start: int, size: int) -> None:
    """The tensors lie one behind the other and end where the file ends."""
    position, previous = start, ""
    for tensor in sorted(tensors.values(), key=lambda item: (item.begin, item.end)):
        if tensor.begin < position:
            raise WeightFileError(f"the header of {file} is broken: {tensor.name!r} overlaps {previous!r}")
        if tensor.begin > position:
            raise WeightFileError(
                f"the header of {file} is broken: {tensor.begin - position:,} bytes before {tensor.name!r} belong to "
                "no tensor"
            )
        position, previous = tensor.end, tensor.name
    if position > size:
        raise WeightFileError(
            f"{file} is truncated: its header describes {position:,} bytes, the file holds {size:,}; download it again"
        )
    if position < size:
        raise WeightFileError(
            f"{file} is {size - position:,} bytes longer than its header describes; download it again"
        )
