"""Messages between the processes of stages: two lengths, JSON of a value of a known class, and bytes if it has some.

Knows dataclasses and their fields' types; no socket. JSON because these cross a network: whatever the bytes are,
nothing but the known classes is made of them, with fields of the types that they declare.
"""

import dataclasses
import json
import struct
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

_LENGTHS = struct.Struct("<II")  # of the JSON, of the bytes behind it
_seen: dict[Any, Mapping[str, Any]] = {}
MOST_BYTES = 1 << 30  # of a message: logits of 32 rows are 33 MB


class RemoteWireError(Exception):
    """Bytes that are no message: the other end is not what it should be."""


def encode(message: Any) -> bytes:
    """A dataclass of plain fields, with its lengths in front. At most one field of it is bytes."""
    content = b""
    fields = {}
    for name in _hints(type(message)):
        value = getattr(message, name)
        if isinstance(value, bytes):
            content = value
        else:
            fields[name] = _plain(value)
    header = json.dumps([type(message).__name__, fields], separators=(",", ":")).encode()
    return _LENGTHS.pack(len(header), len(content)) + header + content


class RemoteDecoder:
    """Collects bytes and gives the messages that are complete."""

    def __init__(self, known: Sequence[type]) -> None:
        """known: the classes of messages that may come."""
        self._known = {kind.__name__: kind for kind in known}
        self._bytes = bytearray()

    def feed(self, received: bytes) -> None:
        """Bytes as they came, cut anywhere."""
        self._bytes += received

    def next(self) -> Any | None:
        """The next complete message, or None. Raises RemoteWireError for bytes that are none."""
        if len(self._bytes) < _LENGTHS.size:
            return None
        of_header, of_content = _LENGTHS.unpack_from(self._bytes)
        if of_header + of_content > MOST_BYTES:
            raise RemoteWireError(f"a message of {of_header + of_content:,} bytes: at most {MOST_BYTES:,} are sent")
        middle = _LENGTHS.size + of_header
        if len(self._bytes) < middle + of_content:
            return None
        header, content = bytes(self._bytes[_LENGTHS.size : middle]), bytes(self._bytes[middle : middle + of_content])
        del self._bytes[: middle + of_content]
        return self._message(header, content)

    def _message(self, header: bytes, content: bytes) -> Any:
        try:
            name, fields = json.loads(header)
            return _made(self._known[name], fields, content)
        except (ValueError, KeyError, TypeError, RecursionError) as failure:
            raise RemoteWireError(f"these bytes are no message: {type(failure).__name__}: {failure}") from failure


def _hints(kind: Any) -> Mapping[str, Any]:
    """Types of a dataclass' fields by name."""
    if kind not in _seen:
        hints = typing.get_type_hints(kind)
        _seen[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _seen[kind]


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _hints(type(value))}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_plain(each) for each in value]
    return value


def _made(kind: Any, fields: Any, content: bytes = b"") -> Any:
    """A dataclass of these fields. Raises TypeError for one that is missing, unknown or of another type."""
    hints = _hints(kind)
    if not isinstance(fields, dict):
        raise TypeError(f"fields of {kind.__name__} are {fields!r}")
    values = {name: _value(hints[name], each) for name, each in fields.items()}
    return kind(**values | {name: content for name, hint in hints.items() if hint is bytes})


def _value(hint: Any, found: Any) -> Any:
    """A field's value of what JSON gave. Raises TypeError or ValueError where it is not of the field's type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if found is None else _value(next(each for each in inner if each is not types.NoneType), found)
    if origin is tuple or origin is Sequence:
        return tuple(_value(inner[0], each) for each in _of(list, found))
    if origin is frozenset:
        return frozenset(_value(inner[0], each) for each in _of(list, found))
    if origin is Mapping:
        return {key: _value(inner[1], each) for key, each in _of(dict, found).items()}
    if dataclasses.is_dataclass(hint):
        return _made(hint, found)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(found)
    if hint is float and isinstance(found, int) and not isinstance(found, bool):
        return float(found)
    return _of(hint, found)


def _of(kind: type, found: Any) -> Any:
    """Of exactly this type: True is no number. Raises TypeError."""
    if type(found) is not kind:
        raise TypeError(f"{found!r} is no {kind.__name__}")
    return found
