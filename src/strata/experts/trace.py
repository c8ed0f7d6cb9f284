"""A recorded routing trace: which experts each row of real or drawn conversations took, and the file it is kept in.

Knows the file's format and trusts no file; knows no model and no policy. A file is a safetensors file: 8 bytes of
length, a JSON header, the arrays of `Trace` one after another. It appears whole or not at all.
"""

import errno
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import TraceError
from strata.weights.json_files import parse_json_object, reason_of
from strata.weights.new_path import folder_of_new, nothing_can_be_made

FORMAT = "strata-routing-trace-1"
MOST_HEADER_BYTES = 1 << 20
MOST_BYTES = 8 << 30  # a million rows of 48 layers take 1 GB
MOST_EXPERTS = 1 << 15  # ids are int16
MOST_LAYERS = 1024  # what replays count in is [layers, experts]
MOST_BLOB_BYTES = 1 << 36  # so that the bytes of all experts are an int64

_COLUMNS = ("steps", "is_read", "conversations", "positions")
_CODES = {"ids": "I16", "steps": "I32", "is_read": "U8", "conversations": "I32", "positions": "I32"}
_TYPES: dict[str, np.dtype[Any]] = {"I16": np.dtype("<i2"), "I32": np.dtype("<i4"), "U8": np.dtype("u1")}


@dataclass(frozen=True)
class Trace:
    """Rows in the order in which they became state; of layers, those that have experts.

    A step is one call of the model: a piece of a prompt that was read, or a decode window. Rows that a window computed
    and did not accept are not here.
    """

    model: str  # its name
    experts: int  # of each layer
    blob_bytes: tuple[int, ...]  # of one expert of each layer, as a cache would hold it
    ids: NDArray[np.int16]  # [rows, layers, ranks], best first
    steps: NDArray[np.int32]  # [rows], never falling
    is_read: NDArray[np.bool_]  # [rows]: part of a prompt; false: decoded in a window
    conversations: NDArray[np.int32]  # [rows]
    positions: NDArray[np.int32]  # [rows]: in its conversation

    @property
    def windows(self) -> NDArray[np.int32]:
        """The steps that are decode windows, in order."""
        return np.unique(self.steps[~self.is_read])


def save_trace(trace: Trace, target: Path) -> None:
    """Write `target`, which must not exist. Raises StrataError, and leaves nothing, if that is not possible."""
    folder = folder_of_new(target)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.partial-", dir=folder)
    except OSError as failure:
        raise nothing_can_be_made(folder, failure) from None
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            for part in _parts(trace):
                out.write(part)
        partial.chmod(0o644)  # mkstemp's 0o600 would outlive the rename
        partial.rename(target)
    except OSError as failure:
        why = "the disk has no room" if failure.errno in (errno.ENOSPC, errno.EDQUOT) else reason_of(failure)
        raise TraceError(f"{target} cannot be written: {why}; nothing was kept") from None
    finally:
        partial.unlink(missing_ok=True)


def load_trace(file: Path) -> Trace:
    """A trace whose every number has been checked. Raises TraceError naming the field and what is wrong with it."""
    data = _read(file)
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= MOST_HEADER_BYTES:
        raise TraceError(f"{file} is no routing trace: its header would take {length:,} bytes")
    if 8 + length > len(data):
        raise TraceError(f"{file} is truncated: its header takes {8 + length:,} bytes, the file holds {len(data):,}")
    header = parse_json_object(data[8 : 8 + length], f"the header of {file}", TraceError)
    facts = header.get("__metadata__")
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise TraceError(f"{file} is no routing trace: its header does not say format {FORMAT}")
    shape = _shape_of_ids(file, header)
    arrays = _arrays(file, header, shape, memoryview(data)[8 + length :])
    blob_bytes = _blob_bytes(file, facts, shape[1])
    experts = _whole(file, "experts", facts.get("experts"), 1, MOST_EXPERTS)
    _check_rows(file, arrays, experts)
    model = facts.get("model")
    if not isinstance(model, str):
        raise TraceError(f"{file}: model is {str(model)[:80]}; it must be text")
    return Trace(model, experts, blob_bytes, **arrays)


def _parts(trace: Trace) -> list[bytes]:
    arrays = {"ids": trace.ids, **{name: getattr(trace, name) for name in _COLUMNS}}
    facts = {
        "format": FORMAT,
        "model": trace.model,
        "experts": str(trace.experts),
        "blob_bytes": json.dumps(trace.blob_bytes, separators=(",", ":")),
    }
    header: dict[str, Any] = {"__metadata__": facts} | _entries(trace.ids.shape)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    values = [np.ascontiguousarray(array, _TYPES[_CODES[name]]).tobytes() for name, array in arrays.items()]
    return [len(text).to_bytes(8, "little"), text, *values]


def _entries(shape: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """The header's lines about the arrays of a trace whose ids have this shape: there is only one way to lay it out."""
    entries, begin = {}, 0
    for name, code in _CODES.items():
        own = list(shape) if name == "ids" else [shape[0]]
        end = begin + int(np.prod(own, dtype=object)) * _TYPES[code].itemsize
        entries[name] = {"dtype": code, "shape": own, "data_offsets": [begin, end]}
        begin = end
    return entries


def _read(file: Path) -> bytes:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise TraceError(f"{file} is not a regular file")
            if not 8 < status.st_size <= MOST_BYTES:
                raise TraceError(f"{file} is no routing trace: it holds {status.st_size:,} bytes")
            return opened.read(MOST_BYTES)
    except OSError as failure:
        raise TraceError(f"{file} cannot be read: {reason_of(failure)}") from None


def _shape_of_ids(file: Path, header: dict[str, Any]) -> tuple[int, int, int]:
    entry = header.get("ids")
    shape = entry.get("shape") if isinstance(entry, dict) else None
    if not isinstance(shape, list) or len(shape) != 3 or not all(type(size) is int and size > 0 for size in shape):
        raise TraceError(f"{file}: ids has shape {str(shape)[:80]}; it must be [rows, layers, ranks], each at least 1")
    if shape[1] > MOST_LAYERS:
        raise TraceError(f"{file}: ids has {shape[1]:,} layers; at most {MOST_LAYERS:,} are read")
    return shape[0], shape[1], shape[2]


def _arrays(
    file: Path, header: dict[str, Any], shape: tuple[int, int, int], data: memoryview
) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    expected = _entries(shape)
    unknown = header.keys() - expected.keys() - {"__metadata__"}
    if unknown:
        raise TraceError(f"{file}: {min(unknown)[:80]!r} is not part of a routing trace")
    needed = expected[_COLUMNS[-1]]["data_offsets"][1]
    for name, entry in expected.items():
        if header.get(name) != entry:
            raise TraceError(f"{file}: {name} is described as {str(header.get(name))[:120]}; it must be {entry}")
    if len(data) != needed:
        what = "is truncated" if len(data) < needed else "is too long"
        raise TraceError(f"{file} {what}: its header describes {needed:,} bytes of rows, the file holds {len(data):,}")
    for name, entry in expected.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[begin:end], _TYPES[entry["dtype"]])
        arrays[name] = values.reshape(entry["shape"])
    return arrays


def _blob_bytes(file: Path, facts: dict[str, Any], layers: int) -> tuple[int, ...]:
    text = facts.get("blob_bytes")
    try:
        sizes = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        sizes = None
    if not isinstance(sizes, list) or len(sizes) != layers:
        raise TraceError(
            f"{file}: blob_bytes is {str(text)[:80]!r}; it must list the bytes of {layers} layers' experts"
        )
    return tuple(_whole(file, "blob_bytes", size, 1, MOST_BLOB_BYTES) for size in sizes)


def _whole(file: Path, field: str, value: Any, low: int, high: int) -> int:
    """A number of the header, which may be written as text."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else value
    if type(number) is not int or not low <= number <= high:
        raise TraceError(f"{file}: {field} is {str(value)[:80]!r}; a whole number from {low:,} to {high:,} works")
    return number


def _check_rows(file: Path, arrays: dict[str, NDArray[Any]], experts: int) -> None:
    """Raises TraceError for the first value that no recording gives."""
    ids = arrays["ids"]
    if ids.shape[2] > experts:
        raise TraceError(f"{file}: ids has {ids.shape[2]} ranks, and there are {experts} experts to choose from")
    _check(file, "ids", ids, (ids < 0) | (ids >= experts), f"0 to {experts - 1} works")
    ordered = np.sort(ids, axis=2)
    repeats = (ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2)
    if repeats.any():
        row, layer = (int(index[0]) for index in np.nonzero(repeats))
        raise TraceError(f"{file}: row {row} of ids names an expert twice in layer {layer}")
    for name in ("steps", "conversations", "positions"):
        _check(file, name, arrays[name], arrays[name] < 0, "it must be at least 0")
    is_read, steps = arrays["is_read"], arrays["steps"]
    _check(file, "is_read", is_read, is_read > 1, "0 or 1 works")
    arrays["is_read"] = is_read.astype(bool)
    falls = np.diff(steps, prepend=steps[:1]) < 0
    _check(file, "steps", steps, falls, "steps never fall from one row to the next")
    mixed = (np.diff(steps, prepend=steps[:1] - 1) == 0) & (is_read != np.roll(is_read, 1))
    _check(file, "is_read", is_read, mixed, "a step is a read or a window, not both")


def _check(file: Path, field: str, values: NDArray[Any], is_wrong: NDArray[np.bool_], rule: str) -> None:
    if is_wrong.any():
        row = int(np.nonzero(is_wrong)[0][0])
        raise TraceError(f"{file}: {field} holds {values[is_wrong].flat[0]} (row {row}); {rule}")
