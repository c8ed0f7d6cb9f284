"""GGUF files: one file or the shards of one model, mapped into memory; nothing is used before it was checked.

Knows the container (header, metadata, where each tensor lies) and its versions 2 and 3; knows no model and decodes no
value. Nothing here allocates more than a small multiple of what the file itself holds.
"""

import mmap
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata.errors import ModelError, WeightFileError
from strata.native.file_map import FileMap
from strata.weights.gguf_metadata import Cursor, Metadata
from strata.weights.gguf_types import TYPES, GgmlType
from strata.weights.json_files import reason_of

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
_SMALLEST_ENTRY = 8 + 4 + 8 + 4 + 8  # of a tensor: name, number of sizes, a size, type, offset
_SMALLEST_PAIR = 8 + 4 + 1
_SHARD_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf$")


@dataclass(frozen=True)
class GgufTensor:
    """One tensor as a file holds it. `shape` is in torch's order: the last size is that of a row."""

    name: str
    file: Path
    type: GgmlType
    shape: tuple[int, ...]
    begin: int  # byte offsets from the start of the file
    end: int

    @property
    def stored_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class GgufFile:
    """One mapped file."""

    path: Path
    metadata: Metadata
    tensors: dict[str, GgufTensor]
    data: np.ndarray  # [file size] uint8, a view of the mapping


class Gguf:
    """A model in one file or several: the first file's metadata, the tensors of all of them by their own names."""

    def __init__(self, files: list[GgufFile]) -> None:
        self.path = files[0].path
        self.metadata = files[0].metadata
        self.paths = tuple(file.path for file in files)
        self.tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
        self._data = {file.path: file.data for file in files}

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises ConfigError if it is missing."""
        return self.metadata.text("general.architecture")

    def rows_of(self, tensor: GgufTensor) -> np.ndarray:
        """The tensor's bytes as a view of the file: [.., rows, row bytes] uint8."""
        flat = self._data[tensor.file][tensor.begin : tensor.end]
        return flat.reshape(*tensor.shape[:-1], tensor.type.row_bytes(tensor.shape[-1]))


def is_gguf(path: Path) -> bool:
    """True for a file that is named or begins as a GGUF file; never raises."""
    try:
        if not path.is_file():
            return False
        if path.suffix == ".gguf":
            return True
        with open(path, "rb") as opened:
            return opened.read(4) == MAGIC
    except (OSError, ValueError):
        return False


def open_gguf(path: Path) -> Gguf:
    """Open a GGUF file; of a split model the first file is given and the others are found beside it.

    Raises WeightFileError (ModelError if there is no such file) with one sentence for everything that is wrong.
    """
    first = read_file(path)
    count = first.metadata.integer("split.count", 1)
    if count <= 1:
        return Gguf([first])
    if first.metadata.integer("split.no", 0) != 0:
        raise WeightFileError(f"{path} is not the first of its {count:,} files; give the one named ...-00001-of-...")
    name = _SHARD_NAME.match(path.name)
    if name is None or int(name["number"]) != 1 or int(name["count"]) != count:
        raise WeightFileError(
            f"{path} is the first of {count:,} files; they are found by names that end with -00001-of-{count:05d}.gguf"
        )
    files = [first]
    for number in range(2, count + 1):
        other = path.with_name(f"{name['stem']}-{number:05d}-of-{count:05d}.gguf")
        if not other.is_file():
            raise WeightFileError(f"the shard {other.name} is missing beside {path}; download the model again")
        files.append(read_file(other))
        _check_shard(first, files[-1], number, count)
    _check_together(files)
    return Gguf(files)


def read_file(path: Path) -> GgufFile:
    """Map one file and check its header."""
    data = _map(path)
    cursor = Cursor(data, path, 4)
    _check_version(cursor)
    tensor_count, pair_count = cursor.u64("the number of tensors"), cursor.u64("the number of metadata keys")
    cursor.require(tensor_count * _SMALLEST_ENTRY + pair_count * _SMALLEST_PAIR, "what the header announces")
    values: dict[str, object] = {}
    for _ in range(pair_count):
        key = cursor.text("a metadata key")
        if key in values:
            raise WeightFileError(f"{path} has the metadata key {key[:100]!r} twice")
        values[key] = cursor.value(repr(key[:100]))
    metadata = Metadata(path, data, values)
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT, minimum=1)
    if alignment & (alignment - 1):
        raise WeightFileError(f"{path}: general.alignment = {alignment} is no power of two")
    entries = [_read_entry(cursor) for _ in range(tensor_count)]
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, kind, shape, offset in entries:
        if name in tensors:
            raise WeightFileError(f"{path} holds the tensor {name[:100]!r} twice")
        if offset % alignment:
            raise WeightFileError(f"{path}: tensor {name[:100]!r} begins at {offset:,}, no multiple of {alignment}")
        size = kind.row_bytes(shape[-1])
        for rows in shape[:-1]:
            size *= rows
        tensors[name] = GgufTensor(name, path, kind, shape, start + offset, start + offset + size)
    _check_extents(path, tensors.values(), len(data))
    return GgufFile(path, metadata, tensors, np.frombuffer(data, dtype=np.uint8))


def _map(path: Path) -> mmap.mmap:
    try:
        # Without O_NONBLOCK a FIFO of that name would wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}") from None
    except OSError as failure:
        raise WeightFileError(f"{path} cannot be read: {reason_of(failure)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise WeightFileError(f"{path} is not a regular file")
        if status.st_size < 24:
            raise WeightFileError(f"{path} is no GGUF file or truncated: it holds {status.st_size} bytes")
        data = FileMap(descriptor, path)
    except (OSError, WeightFileError) as failure:
        os.close(descriptor)
        if isinstance(failure, WeightFileError):
            raise
        raise WeightFileError(f"{path} cannot be read: {reason_of(failure)}") from None
    if data[:4] != MAGIC:
        raise WeightFileError(f"{path} is no GGUF file: it begins with {data[:4]!r}, not {MAGIC!r}")
    return data


def _check_version(cursor: Cursor) -> None:
    version = cursor.u32("the version")
    if version in VERSIONS:
        return
    why = "supported: versions 2 and 3"
    if version & 0xFFFF == 0:
        why = "it is written for big-endian computers, which is not supported"
    raise WeightFileError(f"{cursor.file} is a GGUF file of version {version:,}; {why}")


def _read_entry(cursor: Cursor) -> tuple[str, GgmlType, tuple[int, ...], int]:
    """Name, type, shape and offset of one tensor, each checked by itself."""
    name = cursor.text("a tensor's name")
    where = f"{cursor.file}: tensor {name[:100]!r}"
    dimensions = cursor.u32("a tensor's number of sizes")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise WeightFileError(f"{where} has {dimensions:,} sizes; 1 to {MAX_DIMENSIONS} are allowed")
    sizes = [cursor.u64(f"the sizes of {name[:100]!r}") for _ in range(dimensions)]
    number, offset = cursor.u32("a tensor's type"), cursor.u64("a tensor's offset")
    kind = TYPES.get(number)
    if kind is None:
        raise WeightFileError(f"{where} is stored as type {number:,}, which is not known")
    if min(sizes) == 0 or sizes[0] % kind.block_weights:
        raise WeightFileError(
            f"{where} has sizes {sizes}; {kind.name} needs sizes above 0 and rows of a multiple of "
            f"{kind.block_weights} weights"
        )
    return name, kind, tuple(reversed(sizes)), offset


def _check_extents(path: Path, tensors: Iterable[GgufTensor], size: int) -> None:
    """Every tensor lies within the file and none over another."""
    position, previous = 0, ""
    for tensor in sorted(tensors, key=lambda item: (item.begin, item.end)):
        if tensor.end > size:
            raise WeightFileError(
                f"{path} is truncated or broken: tensor {tensor.name[:100]!r} ends at byte {tensor.end:,}, the file "
                f"holds {size:,}"
            )
        if tensor.begin < position:
            raise WeightFileError(f"{path} is broken: tensor {tensor.name[:100]!r} overlaps {previous[:100]!r}")
        position, previous = tensor.end, tensor.name


def _check_shard(first: GgufFile, other: GgufFile, number: int, count: int) -> None:
    """The file is shard `number` (from 1) of a model split as the first file says."""
    found = (other.metadata.integer("split.no", -1, -1) + 1, other.metadata.integer("split.count", 0))
    if found != (number, count):
        raise WeightFileError(
            f"{other.path} says that it is file {found[0]} of {found[1]}, its name that it is {number} of {count}"
        )
    for key in ("split.tensors.count", "general.architecture", "general.name"):
        if key in other.metadata and key in first.metadata and other.metadata[key] != first.metadata[key]:
            raise WeightFileError(
                f"{other.path} belongs to another model than {first.path}: {key} is {other.metadata[key]!r:.60}, not "
                f"{first.metadata[key]!r:.60}"
            )


def _check_together(files: list[GgufFile]) -> None:
    held: dict[str, Path] = {}
    for file in files:
        for name in file.tensors:
            if name in held:
                raise WeightFileError(f"tensor {name[:100]!r} is in two files: {held[name]} and {file.path}")
            held[name] = file.path
    expected = files[0].metadata.integer("split.tensors.count", len(held))
    if expected != len(held):
        raise WeightFileError(
            f"the files beside {files[0].path} hold {len(held):,} tensors, the first one announces {expected:,}: they "
            "are not of one model"
        )
