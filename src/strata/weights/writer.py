"""Writes a model directory as the hub publishes it: safetensors shards, their index, small files beside them.

Knows the container and the disk; the caller gives every tensor's name, type, shape and values. A directory appears
whole or not at all: it is written beside its place and renamed at the end.
"""

import errno
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from strata.errors import StrataError
from strata.hardware import disk_free_bytes
from strata.weights.directory import INDEX_NAME, SINGLE_NAME
from strata.weights.header import CODE_OF_DTYPE
from strata.weights.json_files import reason_of
from strata.weights.new_path import folder_of_new, nothing_can_be_made

SPARE_DISK_BYTES = 64 << 20  # left free beside the model: a disk filled to the last byte breaks other programs


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor to publish. `values` yields its memory in order as contiguous tensors of `dtype`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    values: Callable[[], Iterator[torch.Tensor]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def cut_into_shards(tensors: Sequence[PlannedTensor], shard_bytes: int) -> list[list[PlannedTensor]]:
    """The tensors in order, cut so that a shard holds at most `shard_bytes`, or one tensor that is larger."""
    shards: list[list[PlannedTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards


def write_weights(
    directory: Path, tensors: Sequence[PlannedTensor], shard_bytes: int, on_progress: Callable[[int, str], None]
) -> None:
    """Write the shards and, if there is more than one, the index. `on_progress` gets the bytes of each step, a name."""
    shards = cut_into_shards(tensors, shard_bytes)
    if len(shards) == 1:
        _write_shard(directory / SINGLE_NAME, shards[0], on_progress)
        return
    shard_of: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(directory / file_name, shard, on_progress)
        shard_of |= {tensor.name: file_name for tensor in shard}
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)}, "weight_map": shard_of}
    write_json(directory / INDEX_NAME, index)


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """A JSON object with an indent of two, as the hub's files have it."""
    file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def new_directory(target: Path, needed_bytes: int) -> Iterator[Path]:
    """A directory to fill that becomes `target` at the end; on any error nothing is left behind.

    Raises StrataError if `target` exists, its folder does not or lets nothing be made, if the disk has no room for
    `needed_bytes`, or if it fills up on the way.
    """
    parent = folder_of_new(target)
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=parent))
    except OSError as failure:
        raise nothing_can_be_made(parent, failure) from None
    try:
        free = disk_free_bytes(parent)  # asked after a folder is made: where none can be, no room is not the reason
        if needed_bytes + SPARE_DISK_BYTES > free:
            raise no_room(parent, "model", needed_bytes, free, "model")
        partial.chmod(0o755)  # mkdtemp's 0o700 would outlive the rename
        yield partial
        partial.rename(target)
    except OSError as failure:
        shutil.rmtree(partial, ignore_errors=True)
        if failure.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_room(parent, "model", needed_bytes, disk_free_bytes(parent), "model") from None
        raise StrataError(f"{target} cannot be written: {reason_of(failure)}") from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def no_room(parent: Path, what: str, needed: int, free: int, smaller: str) -> StrataError:
    """The refusal of a disk that has too few bytes free; `smaller` says of what less would fit."""
    return StrataError(
        f"the disk of {parent} has no room: the {what} takes {_in_words(needed)}, {_in_words(free)} are free and "
        f"{SPARE_DISK_BYTES >> 20} MiB stay free; nothing was kept. Give another place or a smaller {smaller}"
    )


def _in_words(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 1 << 30 else f"{size / 2**20:.1f} MiB"


def _write_shard(file: Path, tensors: Iterable[PlannedTensor], on_progress: Callable[[int, str], None]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in tensors:
        offsets = [position, position + tensor.nbytes]
        header[tensor.name] = {
            "dtype": CODE_OF_DTYPE[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        position = offsets[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the format asks for data that starts at a multiple of 8
    with open(file, "wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for tensor in tensors:
            _write_values(out, tensor, on_progress)


def _write_values(out: BinaryIO, tensor: PlannedTensor, on_progress: Callable[[int, str], None]) -> None:
    written = 0
    for values in tensor.values():
        data = values.contiguous().reshape(-1).view(torch.uint8).numpy()
        out.write(data.data)
        written += data.nbytes
        on_progress(data.nbytes, tensor.name)
    assert written == tensor.nbytes, f"{tensor.name}: {written} of {tensor.nbytes} bytes"
