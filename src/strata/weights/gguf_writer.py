"""Writes a GGUF file of version 3: metadata, where the tensors lie, then their bytes one tensor after another.

Knows the container and the disk; the caller gives keys, values and a tensor's bytes when their turn comes. A file
appears whole or not at all: it is written beside its place and renamed at the end.
"""

import errno
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from strata.errors import StrataError
from strata.hardware import disk_free_bytes
from strata.weights.gguf import DEFAULT_ALIGNMENT, MAGIC
from strata.weights.gguf_metadata import ARRAY, BOOL, SCALARS, TEXT
from strata.weights.gguf_types import GgmlType
from strata.weights.json_files import reason_of
from strata.weights.new_path import folder_of_new, nothing_can_be_made
from strata.weights.writer import SPARE_DISK_BYTES, no_room

_KIND_OF = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10, "i64": 11,
            "f64": 12}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """One metadata key. `kind` is `text`, `bool`, `u32`, `f32`, ..; `[kind]` in brackets for a list of them."""

    key: str
    kind: str
    value: Any


@dataclass(frozen=True)
class OutTensor:
    """One tensor to write. `data` yields its bytes in order when their turn comes."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]  # torch's order
    data: Callable[[], Iterator[np.ndarray]]  # uint8

    @property
    def stored_bytes(self) -> int:
        size = self.type.row_bytes(self.shape[-1])
        for rows in self.shape[:-1]:
            size *= rows
        return size


def write_gguf(
    target: Path, pairs: Sequence[Pair], tensors: Sequence[OutTensor], on_progress: Callable[[int, str], None]
) -> int:
    """Write `target`, which must not exist; returns its size. `on_progress` gets the bytes of each step and a name.

    Raises StrataError if the file exists, its folder does not or lets nothing be made, if the disk has no room, or if
    it fills up on the way; nothing is left then.
    """
    parent = folder_of_new(target)
    header = _header(pairs, tensors)
    needed = len(header) + sum(_padded(tensor.stored_bytes) for tensor in tensors)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.partial-", dir=parent)
    except OSError as failure:
        raise nothing_can_be_made(parent, failure) from None
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            free = disk_free_bytes(parent)  # asked after the file is made: where none can be, no room is not the reason
            if needed + SPARE_DISK_BYTES > free:
                raise no_room(parent, "file", needed, free, "type")
            out.write(header)
            for tensor in tensors:
                _write_tensor(out, tensor, on_progress)
        partial.chmod(0o644)  # mkstemp's 0o600 would outlive the rename
        partial.rename(target)
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_room(parent, "file", needed, disk_free_bytes(parent), "type") from None
        raise StrataError(f"{target} cannot be written: {reason_of(failure)}") from None
    finally:
        partial.unlink(missing_ok=True)
    return needed


def _header(pairs: Sequence[Pair], tensors: Sequence[OutTensor]) -> bytes:
    """Everything before the first tensor, padded to where it begins."""
    parts = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(pairs))]
    for pair in pairs:
        parts += (_text(pair.key), _value(pair))
    offset = 0
    for tensor in tensors:
        sizes = tuple(reversed(tensor.shape))
        parts.append(_text(tensor.name))
        parts.append(struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, tensor.type.number, offset))
        offset += _padded(tensor.stored_bytes)
    header = b"".join(parts)
    return header + bytes(_padded(len(header)) - len(header))


def _value(pair: Pair) -> bytes:
    kind = pair.kind.strip("[]")
    number = TEXT if kind == "text" else _KIND_OF[kind]
    if kind == pair.kind:
        return struct.pack("<I", number) + (_text(pair.value) if number == TEXT else _numbers(number, [pair.value]))
    head = struct.pack("<IIQ", ARRAY, number, len(pair.value))
    return head + (b"".join(map(_text, pair.value)) if number == TEXT else _numbers(number, pair.value))


def _numbers(kind: int, values: Sequence[Any]) -> bytes:
    return np.array(values, dtype=bool if kind == BOOL else SCALARS[kind]).tobytes()


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _padded(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _write_tensor(out: BinaryIO, tensor: OutTensor, on_progress: Callable[[int, str], None]) -> None:
    written = 0
    for data in tensor.data():
        out.write(np.ascontiguousarray(data).data)
        written += data.nbytes
        on_progress(data.nbytes, tensor.name)
    assert written == tensor.stored_bytes, f"{tensor.name}: {written} of {tensor.stored_bytes} bytes"
    out.write(bytes(_padded(written) - written))
